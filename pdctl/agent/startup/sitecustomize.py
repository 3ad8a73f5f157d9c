"""Run by every Python with this directory on PYTHONPATH: places pdctl's import hook, then runs the next sitecustomize.

Python imports only the first ``sitecustomize`` it finds; a distribution's or an image's own one must still run.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))


def _install_hook() -> None:
    if importlib.util.find_spec("pdctl") is None:
        # pdctl lives in another environment than the engine: this package alone is made importable, nothing beside it.
        package = os.path.dirname(os.path.dirname(_HERE))
        spec = importlib.util.spec_from_file_location(
            "pdctl", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules["pdctl"] = module
        spec.loader.exec_module(module)
    from pdctl.agent import startup

    startup.install()


def _run_next_sitecustomize() -> None:
    rest = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module  # it is the one others see, as without pdctl
        spec.loader.exec_module(module)


try:
    _install_hook()
except Exception:  # noqa: S110 - whatever is wrong with pdctl here, the program starts as ever
    pass

_run_next_sitecustomize()
