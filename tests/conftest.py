"""Ctrl-C reaches what tests start, also where the suite is run in the background of a script, which has it ignored."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
