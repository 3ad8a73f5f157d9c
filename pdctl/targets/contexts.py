"""Saved targets: where the ranks of a cluster are, which keys they take, and whether faults are allowed there.

Kept in ``$XDG_CONFIG_HOME/pdctl/contexts.toml`` (``~/.config`` where unset), one table a context::

    current = "prod"

    [context.prod]
    run_dir = "/run/pdctl"
    record_dir = "/dev/shm/pdctl/1000"
    inject = "never"

    [context.far]
    endpoints = ["tcp://10.0.0.1:7311", "tcp://10.0.0.2:7311"]
    server_key = "5d…"
    key = "alice"

    [context.bare]
    hosts = "gpu[001-064]"
    via = "ssh {host} /opt/pdctl/bin/pdctl"

``--context NAME`` and ``PDCTL_CONTEXT`` choose one for a single command, in this order, before ``current``. Directories
given by ``--run-dir``, ``--record-dir`` or the environment of the command win over those of a context, and so do
``--endpoint``, ``--store``, ``--hosts``, ``--via``, ``--server-key`` and ``--key``.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import read_regular
from pdctl.protocol.paths import user_dir

INJECT = ("allow", "never")
MAX_FILE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One saved target. run_dir, record_dir: as the options of that name, "" for the usual place. inject: INJECT.

    endpoints: where ranks listen for other hosts. store: the job's TCPStore, where they publish themselves.
    server_key: the public key that agents there have. key: the name of the
    pair that is shown to them. hosts, via: as the options of that name.
    """

    run_dir: str = ""
    record_dir: str = ""
    inject: str = "allow"
    endpoints: tuple[str, ...] = ()
    store: str = ""
    server_key: str = ""
    key: str = ""
    hosts: str = ""
    via: str = ""


class Contexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file holds. current: used where a command names none, "" for none."""

    current: str = ""
    context: dict[str, Context] = {}


def path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where contexts are kept."""
    return user_dir(environ, "XDG_CONFIG_HOME") / "contexts.toml"


def load(environ: Mapping[str, str] = os.environ) -> Contexts:
    """Return the saved contexts, none where there is no file. Raises PdctlError (USAGE) for a file that can't be read.

    A file that can't be read stops a command: the context it held might have forbidden what the command does.
    """
    file = path(environ)
    try:
        text = read_regular(file, MAX_FILE, follow=True).decode()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise PdctlError(f"{file} can't be read: {error.strerror}", "it holds the contexts", Exit.USAGE) from None
    except UnicodeDecodeError as error:
        raise PdctlError(f"{file} can't be read: {error}", "it holds the contexts", Exit.USAGE) from None
    try:
        found = structs.convert(msgspec.toml.decode(text), Contexts)
    except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors
        raise PdctlError(f"{file}: {error}", "pdctl context add writes it anew", Exit.USAGE) from None
    for name, context in found.context.items():
        if context.inject not in INJECT:
            raise PdctlError(
                f"{file}: context.{name}.inject is {context.inject!r}", f"write {' or '.join(INJECT)}", Exit.USAGE
            )
    return found


def select_context(environ: Mapping[str, str] = os.environ) -> tuple[str, Context]:
    """Return the name and content of the context that a command uses, ("", defaults) where it uses none.

    Raises PdctlError (USAGE) when PDCTL_CONTEXT names one that is not saved.
    """
    contexts = load(environ)
    name = environ.get("PDCTL_CONTEXT") or contexts.current
    if not name:
        return "", Context()
    if name not in contexts.context:
        there = ", ".join(sorted(contexts.context)) or "none"
        raise PdctlError(f"no context {name} is saved", f"saved are: {there}", Exit.USAGE)
    return name, contexts.context[name]


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``environ`` with the places and keys of the chosen context where it has none of its own."""
    _, context = select_context(environ)
    places = {
        "PDCTL_RUN_DIR": context.run_dir,
        "PDCTL_RECORD_DIR": context.record_dir,
        "PDCTL_ENDPOINT": " ".join(context.endpoints),
        "PDCTL_STORE": context.store,
        "PDCTL_HOSTS": context.hosts,
        "PDCTL_VIA": context.via,
        "PDCTL_SERVER_KEY": context.server_key,
        "PDCTL_KEY": context.key,
    }
    return {**{name: place for name, place in places.items() if place}, **environ}


def forbid_faults(environ: Mapping[str, str] = os.environ) -> None:
    """Return where the chosen context allows faults; raises PdctlError (REFUSED) where it says ``inject = "never"``."""
    name, context = select_context(environ)
    if context.inject == "never":
        raise PdctlError(
            f'context {name} says inject = "never"', "choose another context with --context NAME", Exit.REFUSED
        )


def add(name: str, context: Context, environ: Mapping[str, str] = os.environ) -> None:
    """Save ``context`` under ``name``. Raises PdctlError (USAGE) for a name that is none, or a file that can't be written."""
    if not _NAME.fullmatch(name):
        raise PdctlError(f"{name!r} is no name of a context", "letters, digits, _ . and - only", Exit.USAGE)
    known = load(environ)
    _write(Contexts(known.current, {**known.context, name: context}), environ)


def use(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Make ``name`` the one used where a command names none, "" for none. Raises PdctlError (USAGE) if it is not saved."""
    known = load(environ)
    if name:
        select_context({**environ, "PDCTL_CONTEXT": name})
    _write(Contexts(name, known.context), environ)


def remove(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Forget ``name``; none is used afterwards where it was. Raises PdctlError (USAGE) if it is not saved."""
    select_context({**environ, "PDCTL_CONTEXT": name})
    known = load(environ)
    left = {one: context for one, context in known.context.items() if one != name}
    _write(Contexts("" if known.current == name else known.current, left), environ)


def _write(contexts: Contexts, environ: Mapping[str, str]) -> None:
    lines = [f"current = {_quoted(contexts.current)}"]
    for name, context in sorted(contexts.context.items()):
        lines += ["", f"[context.{_quoted(name)}]"]
        lines += [f"{key} = {_written(value)}" for key, value in msgspec.to_builtins(context).items()]
    file, data = path(environ), ("\n".join(lines) + "\n").encode()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".contexts", delete=False) as new:
            new.write(data)
        Path(new.name).replace(file)
    except OSError as error:
        raise PdctlError(f"{file} can't be written: {error.strerror}", code=Exit.USAGE) from None


def _written(value: str | tuple[str, ...] | list[str]) -> str:
    return _quoted(value) if isinstance(value, str) else f"[{', '.join(map(_quoted, value))}]"


def _quoted(text: str) -> str:
    # A JSON string without characters above ASCII (escaped as \uXXXX pairs) is one of TOML's, unless it has surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
