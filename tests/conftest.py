"""What every test relies on."""

from __future__ import annotations

import signal

# A shell that started the tests in the background has made them, and all they start, deaf to Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
