"""Ray, HAProxy and nodes: a cluster started, watched and drained. The only room that imports Ray."""
