"""Makes the command of a probe: its own options from the fields of its options class, and those that probes share."""

from __future__ import annotations

import inspect
import types
from dataclasses import MISSING, fields
from typing import Annotated, Any, Optional, Union, get_args, get_origin, get_type_hints

import typer

from pdctl.commands import options as opt
from pdctl.commands.completing import values
from pdctl.commands.examples import Given
from pdctl.commands.options import reach_of, seconds, selection, target_place
from pdctl.commands.watching import WatchOption, watch
from pdctl.probes.base import RANK_TIMEOUT_S, SECONDS, TARGET, AnyProbe, Option, WrongOptionError
from pdctl.probes.registry import GROUPS, Entry, entries
from pdctl.probes.run import EXIT_CODES, Asked, run
from pdctl.report.output import Format, Output

_PARSERS = {SECONDS: seconds, TARGET: target_place}


def application(name: str) -> typer.Typer:
    """Return the Typer application of a command that :mod:`pdctl.probes.registry` has."""
    group = GROUPS.get(name)
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=group is not None,
        help=group.help if group is not None else None,
    )
    for entry in entries(name):
        app.command(entry.command.rpartition(" ")[2])(_command(entry))
    return app


def examples(name: str) -> Given:
    """Return the examples of such a command, or those of its subcommands."""
    if name not in GROUPS:
        [entry] = entries(name)
        return entry.load().examples
    return {entry.command.rpartition(" ")[2]: entry.load().examples for entry in entries(name)}


def _command(entry: Entry) -> Any:
    """Return a function with the signature that Typer reads the command from."""
    probe = entry.load()
    own = _own(probe)
    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *own.values(),
        *_shared(probe),
    ]

    def command(ctx: typer.Context, output: Format, **given: Any) -> int:
        values = {name: tuple(given[name] or ()) if one.default == () else given[name] for name, one in own.items()}
        options = probe.options(**values)
        asked = Asked(
            reach=reach_of(ctx, given["run_dir"], given["record_dir"]),
            source=given.get("source"),
            selection=selection(*(given.get(name) for name in ("ranks", "groups", "servers", "roles"))),
            every_start=given.get("every_start", False),
            timeout_s=given["timeout"],
            rank_timeout_s=given["rank_timeout"],
            only_findings=given["findings"],
        )
        every_s = given.get("every_s")
        if every_s is not None and asked.source is not None and not asked.source.is_dir():
            raise typer.BadParameter("a trace does not change", param_hint="--watch")
        try:
            if every_s is not None:
                return watch(lambda out: run(probe, options, asked, out), Format(output), every_s)
            return int(run(probe, options, asked, Output(output)))
        except WrongOptionError as error:
            raise typer.BadParameter(str(error), param_hint=error.option) from None

    made: Any = command
    made.__doc__ = f"{inspect.getdoc(type(probe))}\n\n{EXIT_CODES}"
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {one.name: one.annotation for one in parameters}
    return made


def _own(probe: AnyProbe) -> dict[str, inspect.Parameter]:
    """Return the parameters that are the probe's own, by the fields of its options."""
    found = {}
    hints = get_type_hints(probe.options, include_extras=True)
    for one in fields(probe.options):
        kind, *more = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else (None,)
        option = next((each for each in more if isinstance(each, Option)), None)
        if option is None:
            continue
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        annotation: Any = Annotated[_typers(kind), _parameter(option)]
        found[one.name] = inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
    return found


def _parameter(option: Option) -> Any:
    words: dict[str, Any] = {"help": option.help, "metavar": option.metavar, "min": option.least, "max": option.most}
    words = {name: value for name, value in words.items() if value is not None}
    if option.values:
        words["autocompletion"] = values(option.values)
    if option.kind:
        words["parser"] = _PARSERS[option.kind]
    return typer.Option(option.name, **words) if option.name else typer.Argument(**words)


def _typers(kind: Any) -> Any:
    """Return a type as older Typer takes it: ``Optional[X]`` for ``X | None``, ``Optional[list[X]]`` for ``tuple[X, ...]``."""
    if get_origin(kind) is tuple:
        return Optional[list[get_args(kind)[0]]]  # type: ignore[misc]  # noqa: UP045
    if get_origin(kind) in (Union, types.UnionType):
        [inner] = [each for each in get_args(kind) if each is not type(None)]
        return Optional[inner]  # noqa: UP045
    return kind


def _shared(probe: AnyProbe) -> list[inspect.Parameter]:
    """Return the parameters of the options that probes share, as far as they make sense for this one."""
    shared: list[tuple[str, Any, Any, bool]] = [
        ("ranks", opt.RankOption, None, probe.selects),
        ("groups", opt.GroupOption, None, probe.selects),
        ("servers", opt.ServerOption, None, probe.selects),
        ("roles", opt.RoleOption, None, probe.selects),
        ("output", opt.OutputOption, Format.TABLE, True),
        ("findings", opt.FindingsOption, False, True),
        ("every_start", opt.AllStartsOption, False, probe.starts),
        ("source", opt.FromOption, None, probe.offline or bool(probe.bundled)),
        ("every_s", WatchOption, None, probe.repeats),
        ("run_dir", opt.RunDirOption, None, True),
        ("record_dir", opt.RecordDirOption, None, True),
        ("timeout", opt.TimeoutOption, probe.timeout_s, True),
        ("rank_timeout", opt.RankTimeoutOption, RANK_TIMEOUT_S, True),
    ]
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default, there in shared
        if there
    ]
