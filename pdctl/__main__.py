"""``python -m pdctl``: the same as the ``pdctl`` command."""

from pdctl.cli import main

main()
