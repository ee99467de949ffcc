import socket

import gevent
from gevent.socket import wait_read

from tailrate.loadtest.engine.workers.on_time.breath import breath


def test_a_breath_lets_go_what_is_due_and_ends_where_something_always_is():
    done, (ours, theirs) = [], socket.socketpair()
    gevent.spawn(lambda: (gevent.sleep(0), done.append("begun")))
    gevent.spawn(lambda: (wait_read(ours.fileno()), done.append("read")))
    gevent.sleep(0)
    theirs.send(b"x")
    breath()
    assert sorted(done) == ["begun", "read"]
    busy = gevent.spawn(lambda: [gevent.sleep(0) for _ in iter(lambda: bool(done), False)])
    breath()
    assert not busy.ready()
    done.clear()
    busy.get()
    for each in (ours, theirs):
        each.close()
