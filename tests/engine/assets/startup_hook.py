"""Runs the file that ``PDCTL_TEST_STARTUP`` names, in every Python process of the engine's venv.

Installed into site-packages as ``_engine_test_startup`` and imported by a ``.pth`` file next to it: a
``sitecustomize`` on PYTHONPATH would be in the way of one that a test, or pdctl itself, brings.
"""

import os

_path = os.environ.get("PDCTL_TEST_STARTUP")
if _path:
    with open(_path, encoding="utf-8") as _file:
        exec(compile(_file.read(), _path, "exec"), {"__name__": "_engine_test_patches", "__file__": _path})
