"""Assembles the ``pdctl`` command. A command's module is imported when the command is used, or its help is shown."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

import pdctl
from pdctl import commands
from pdctl.commands.completing import values
from pdctl.commands.examples import Given
from pdctl.commands.examples import add as add_examples
from pdctl.commands.usage import explain
from pdctl.commands.watching import with_times
from pdctl.probes.registry import abouts
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report import progress
from pdctl.report.output import Output, hang_up, settle_streams
from pdctl.targets.reach import Reach

COMMANDS = {
    "preflight": ("preflight", "Look", "Check that a deployment is fit for traffic."),
    "record": ("record", "Look", "Save the recordings of all ranks in one trace file."),
    "bundle": ("bundle", "Look", "Take all that pdctl can see into one file for a ticket."),
    "report": ("report", "Look", "Make a page, or a few lines, of a bundle or a trace."),
    "watch": ("watch", "Look", "Say what goes wrong, its cause, and when it is over."),
    "top": ("top", "Look", "Follow groups, ranks and findings on one screen."),
    "export": ("export", "Look", "Serve metrics for Prometheus, and a liveness probe."),
    "inject": ("inject", "Break", "Inject a fault into live ranks for a limited time."),
    "faults": ("faults", "Break", "List the faults in place."),
    "heal": ("heal", "Break", "End one fault, or all faults, and verify it."),
    "drill": ("drill", "Break", "Inject a fault, heal it, and judge: HOLDS or BROKEN."),
    "attach": ("attach", "Reach", "Read ranks that run without an agent."),
    "run": ("run", "Reach", "Start an engine with the agent in its scheduler processes."),
    "context": ("context", "Reach", "Save targets, and forbid faults on some."),
    "keys": ("keys", "Reach", "Manage the keys for ranks on other hosts."),
    "clean": ("clean", "Reach", "Remove the files of ranks that have ended."),
    "explain": ("explain", "Learn", "Explain a finding and name the next step."),
    "self-test": ("self_test", "Learn", "Find what pdctl hooks in the SGLang that is installed."),
    "schema": ("schema", "Learn", "Print the JSON Schema of a document."),
    "demo": ("demo", "Learn", "Show a hang, its diagnosis, and the engine's fix."),
    "lab": ("lab", "Learn", "Run an embedded cluster of real processes."),
    "replay": ("replay", "Learn", "Execute recorded rounds again, with and without the gate."),
    "bisect": ("bisect", "Learn", "Find the engine version on which a recorded finding is gone."),
    "explore": ("explore", "Learn", "Search for event orders in which ranks diverge."),
}
"""Commands that are no probes, in the order of the help: module in ``pdctl.commands``, section of the help, summary.

Probes are in :mod:`pdctl.probes.registry`. They come first, under Look. The summaries stand here so that ``pdctl --help``
imports no command.

A module has ``app`` (a Typer application, a group), or a function for a single command: ``command``, or one of the
module's own name. EXAMPLES of the module are the two command lines that the help ends with, or those of each subcommand.
CONTEXT_SETTINGS of the module are Typer's for that command.
"""

HIDDEN = {"bridge": ("bridge", "", "Carry questions of a pdctl on another host.")}
"""Commands that pdctl itself runs, on other hosts. No help lists them."""

SECTIONS = ("Look", "Break", "Reach", "Learn")

OWN_LINE = ("run", "inject", "watch", "top", "export", "bridge")
"""Commands that say themselves what they are doing, or are replaced by another program."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_BROKEN_PIPE = 141  # as a shell shows a process that SIGPIPE ended


class Commands(TyperGroup):
    """Finds commands by name, late, and turns what they raise into a line on stderr and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments that are left. ``help COMMAND`` is ``COMMAND --help``."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options; Typer's longest help is cut to one line: the help fits one screen."""
        params: list[Any] = super().get_params(ctx)
        for one in params:
            if one.name == "show_completion":
                one.help = "Show completion for the current shell."
        return params

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of the commands that this installation has."""
        there = Path(commands.__file__).parent
        return [*abouts(), *(name for name, (module, *_) in COMMANDS.items() if (there / f"{module}.py").exists())]

    def summaries(self) -> dict[str, tuple[str, str]]:
        """Return command → its section of the help, and its summary there."""
        own = {name: (section, about) for name, (_, section, about) in COMMANDS.items()}
        return {**{name: ("Look", about) for name, about in abouts().items()}, **own}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, section by section, without importing any."""
        rows = self.summaries()
        names = self.list_commands(ctx)
        width = max(map(len, names))
        formatter.write_paragraph()
        for section in SECTIONS:  # no blank line between them: the help fits one screen
            formatter.write_heading(section)
            with formatter.indentation():
                formatter.write_dl([(f"{name:{width}}", rows[name][1]) for name in names if rows[name][0] == section])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command called ``cmd_name``, None when there is none."""
        if cmd_name not in HIDDEN and cmd_name not in self.list_commands(ctx):
            return None
        group, examples = _probe(cmd_name) if cmd_name in abouts() else _module(cmd_name)
        group.rich_markup_mode = None
        command: Any = typer.main.get_command(group)
        command.name = cmd_name
        command.short_help = HIDDEN[cmd_name][2] if cmd_name in HIDDEN else self.summaries()[cmd_name][1]
        for sub in getattr(command, "commands", {}).values():
            sub.short_help = _first_sentence(sub.help)  # else lists of commands cut the help off where a line ends
        add_examples(command, examples)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and the arguments that are left; from here on it may say what it is doing."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(ctx.obj, Reach) and ctx.obj.pods is not None:
            from pdctl.commands.plugin import refuse  # only where there is one

            refuse(str(name))
        sub = rest[:1] if hasattr(command, "commands") else []
        progress.begin("" if name in OWN_LINE else " ".join([str(name), *sub]))
        return name, command, with_times(command, rest)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an int it returns is its exit code."""
        try:
            with progress.shown():
                code = super().invoke(ctx)
        except PdctlError as error:
            if os.environ.get("PDCTL_DEBUG"):
                raise
            Output().error(error.message, error.next_step, error.details)
            raise typer.Exit(int(error.code)) from None
        except KeyboardInterrupt:
            Output().note("interrupted")
            raise typer.Exit(int(Exit.INTERRUPTED)) from None
        except BrokenPipeError:
            Output().hang_up()
            raise typer.Exit(_BROKEN_PIPE) from None
        except UnicodeEncodeError as error:  # only arguments and names of files have half characters
            if os.environ.get("PDCTL_DEBUG"):
                raise
            Output().error(
                f"not UTF-8: {error.object[: error.end][-80:]}", "Give it another name: pdctl has to write it down."
            )
            raise typer.Exit(int(Exit.USAGE)) from None
        except Exception as error:
            if os.environ.get("PDCTL_DEBUG") or isinstance(error, typer.Abort) or hasattr(error, "exit_code"):
                raise  # what has an exit code is Typer's own: wrong usage, or the end
            if _unwritable(error):
                raise typer.Exit(_lost(error)) from None
            where = "PDCTL_DEBUG=1 shows where this error of pdctl's own came from."
            Output().error(f"{type(error).__name__}: {error}", where)
            raise typer.Exit(int(Exit.PARTIAL)) from None
        if isinstance(code, int) and code:
            raise typer.Exit(int(code))
        return code


def _first_sentence(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def _probe(name: str) -> tuple[typer.Typer, Given]:
    from pdctl.commands.looking import application, examples

    return application(name), examples(name)


def _module(name: str) -> tuple[typer.Typer, Given]:
    module_name, *_ = HIDDEN.get(name) or COMMANDS[name]
    module = import_module(f"pdctl.commands.{module_name}")
    group: typer.Typer | None = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        function = getattr(module, "command", None) or getattr(module, module_name)
        group.command(name, context_settings=getattr(module, "CONTEXT_SETTINGS", None))(function)
    return group, module.EXAMPLES


app = typer.Typer(
    name="pdctl",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # as in get_command: drawing help with rich would double the start-up time
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Find the rank of a prefill/decode cluster that is out of step, and why.

    A cluster hangs now? Run pdctl check, then pdctl diff-queues. pdctl record
    keeps the evidence in a file. No cluster at hand? Run pdctl demo.""",
)


def _version(wanted: bool) -> None:
    if wanted:
        Output().lines(f"pdctl {pdctl.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001  # its callback has done it
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
    context: Annotated[
        str,
        typer.Option(
            "--context", metavar="NAME", autocompletion=values("context"), help="Use this saved target [PDCTL_CONTEXT]."
        ),
    ] = "",
    endpoint: Annotated[
        Optional[list[str]],  # noqa: UP045  # typer evaluates annotations
        typer.Option("--endpoint", metavar="tcp://HOST:PORT", help="Ask this rank; repeatable [PDCTL_ENDPOINT]."),
    ] = None,
    store: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--store",
            metavar="HOST:PORT|env",
            help="Find ranks in this TCPStore [PDCTL_STORE].",
        ),
    ] = None,
    hosts: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--hosts",
            metavar="NODESET|@FILE",
            help="Ask pdctl on these hosts by ssh [PDCTL_HOSTS].",
        ),
    ] = None,
    via: Annotated[
        str,
        typer.Option(
            "--via",
            metavar="COMMAND",
            help="What runs pdctl on a host, if not ssh {host} pdctl: srun -w {host} pdctl [PDCTL_VIA].",
        ),
    ] = "",
    server_key: Annotated[
        str, typer.Option("--server-key", metavar="KEY", help="Public key of those ranks [PDCTL_SERVER_KEY].")
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            "--key", metavar="NAME", autocompletion=values("key"), help="Use this client key of pdctl keys [PDCTL_KEY]."
        ),
    ] = "",
) -> None:
    for name, words in (("--endpoint", endpoint), ("--store", store), ("--hosts", hosts)):
        if not all(word.strip() for word in words or ()):  # an unset variable: not this host's ranks instead
            raise typer.BadParameter("it is empty", param_hint=name)
    pods = ctx.obj.pods if isinstance(ctx.obj, Reach) else None
    if pods is not None and (endpoint or store or hosts):
        raise typer.BadParameter("kubectl pdctl looks into pods only", param_hint="--endpoint, --store, --hosts")
    ctx.obj = Reach(
        context, tuple(endpoint or ()), tuple(store or ()), server_key, key,
        hosts=tuple(hosts or ()), via=via, pods=pods,
    )  # fmt: skip


def collect_garbage_seldom() -> None:
    """Let the collector look after 50,000 new objects, not 700: a judge makes a hundred thousand, none of them a cycle.

    A quarter of the time of judging ten thousand requests; ``benchmarks/judges.py`` does the same.
    """
    gc.set_threshold(50_000, 20, 50)


def main() -> None:
    """Run ``pdctl`` as the console script does; exits the process."""
    _main(_run)


def kubectl() -> None:
    """Run ``kubectl pdctl``, which kubectl finds as ``kubectl-pdctl``; exits the process."""
    _main(_run_on_pods)


def _main(run: Callable[[], int]) -> None:
    collect_garbage_seldom()
    settle_streams()
    try:
        code = run()
    except Exception:  # noqa: BLE001  # as PDCTL_DEBUG asks for
        from traceback import format_exc

        Output().note_lines(format_exc().rstrip("\n"))
        code = 1
    sys.exit(_flushed(code))


def _run_on_pods() -> int:
    from pdctl.commands.plugin import HELP, split_arguments

    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        Output().lines(HELP)
    try:
        pods, words = split_arguments(words)
    except PdctlError as error:
        Output().error(error.message, error.next_step)
        return int(error.code)
    return _run(words, Reach(pods=pods))


def _run(words: Sequence[str] | None = None, reach: Reach | None = None) -> int:
    """Run the command and return its exit code. What is wrong with it is said through :class:`Output`, not by Typer."""
    try:
        return int(app(words, standalone_mode=False, obj=reach) or 0)
    except PdctlError as error:  # of an option that is looked at before there is a command
        if os.environ.get("PDCTL_DEBUG"):
            raise
        Output().error(error.message, error.next_step, error.details)
        return int(error.code)
    except BrokenPipeError:
        Output().hang_up()
        return _BROKEN_PIPE
    except (typer.Abort, KeyboardInterrupt):
        Output().note("interrupted")
        return int(Exit.INTERRUPTED)
    except Exception as error:
        if _unwritable(error):
            return _lost(error)
        if not hasattr(error, "show"):
            raise
        return _wrong_usage(error)


def _wrong_usage(error: Any) -> int:
    """Say what is wrong with the command line and what to write instead; returns the exit code."""
    out = Output()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
        out.note_lines(str(error.message).rstrip("\n"))
    else:
        out.error(*explain(error))
    return int(error.exit_code)


def _unwritable(error: Exception) -> bool:
    """Return whether Typer could not write its own text: a help, into a full disk or a stream that is closed."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _FULL


def _lost(error: Any) -> int:
    out = Output()
    out.hang_up()
    out.error(f"standard output can't be written: {error.strerror}", "Is the disk it goes to full?")
    return int(Exit.PARTIAL)


def _flushed(code: int) -> int:
    """Return ``code`` after what is left has been written; PARTIAL instead of CLEAN where it can't be."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            hang_up(stream)
        except OSError as error:
            hang_up(stream)
            code = code if code or stream is sys.stderr else _lost(error)
    return code


if __name__ == "__main__":
    main()
