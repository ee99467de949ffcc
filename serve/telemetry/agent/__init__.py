"""An agent: the device samples and the clock of one host, served by themselves beside whatever serves models there."""
