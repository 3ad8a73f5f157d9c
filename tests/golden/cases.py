"""What is frozen: in which world which command lines are run, and in which formats.

A case is one file in ``files/``. Its command lines run one after the other in the same directory. Where a line names no
format it is run once for each of the case's ``forms``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import NamedTuple

FORMS = ("narrow", "table", "wide", "json", "jsonl", "yaml", "csv")
"""narrow: a table of 80 columns; table: as wide as its lines, which is what a pipe gets. The others are those of ``-o``."""
LOOK = ("narrow", "wide", "json")
ALL = ("narrow", "wide", "json", "jsonl", "yaml", "csv")
LIVE_LOOK = ("table", "wide", "json")
LIVE_ALL = ("table", "wide", "json", "jsonl", "yaml", "csv")
TWO = ("table", "json")
ONCE = ("narrow",)


class Run(NamedTuple):
    """One command line. shown: as the golden file has it. form: the format of its standard output."""

    words: tuple[str, ...]
    shown: str
    env: dict[str, str]
    form: str


@dataclass(frozen=True)
class Case:
    """One golden file.

    lines: command lines, each without ``pdctl``. forms: of FORMS. ``{NAME}`` in a line stands for one of the world's words.
    brief: why only exit code and first line are kept, "" where all is.
    """

    name: str
    lines: tuple[str, ...]
    forms: tuple[str, ...] = ONCE
    brief: str = ""

    @property
    def world(self) -> str:
        """The world it runs in: the first part of its name."""
        return self.name.partition("/")[0]

    def runs(self, words: dict[str, str]) -> list[Run]:
        """Return every command line, form by form. words: what ``{NAME}`` stands for."""
        return [_run(line, form, words) for form in self.forms for line in self.lines]


def _run(line: str, form: str, words: dict[str, str]) -> Run:
    env = {"COLUMNS": "80"} if form == "narrow" else {}
    option = () if form in ("narrow", "table") else ("-o", form)
    given = tuple(shlex.split(line.format_map(words)))
    if "-o" in given and not option:
        form = given[given.index("-o") + 1]
    shown = " ".join([*(f"{name}={value}" for name, value in env.items()), "pdctl", line, *option]).rstrip()
    return Run((*given, *option), shown, env, form)


def _many(world: str, forms: tuple[str, ...], **lines: str) -> list[Case]:
    """Return a case for each line, called as its keyword, with dashes."""
    return [Case(f"{world}/{name.replace('_', '-')}", (line,), forms) for name, line in lines.items()]


# ---- offline: what is stored, and what needs no rank -----------------------------------------------------------------

S1, REAL, OLD = "s1.pdtrace", "real.pdtrace", "old.pdtrace"
READERS = {
    "ranks": "ranks",
    "diff-queues": "diff-queues",
    "stuck": "stuck",
    "check": "check",
    "verify-routing": "verify-routing",
    "stacks": "stacks",
    "dump-metadata": "dump metadata",
    "dump-groups": "dump groups",
}
"""Commands that take --from."""

_READ = [
    Case(f"offline/{name}-{source.partition('.')[0]}", (f"{line} --from {source}",), ALL if source == S1 else LOOK)
    for source in (S1, REAL, OLD)
    for name, line in READERS.items()
]

_SELECTED = _many(
    "offline",
    LOOK,
    stacks_rank="stacks --from s1.pdtrace --rank decode:tp1",
    stacks_rank_none="stacks --from s1.pdtrace --rank decode:tp7",
    dump_metadata_rank="dump metadata --from s1.pdtrace --rank decode:tp1 --all-slots",
    dump_metadata_room="dump metadata --from s1.pdtrace --room 1862075447030261960",
    dump_metadata_room_unknown="dump metadata --from s1.pdtrace --room 7",
    dump_groups_rank="dump groups --from s1.pdtrace --rank prefill:*",
    check_only="check --from s1.pdtrace --only queues --only stuck",
    check_skip="check --from s1.pdtrace --skip queues",
    check_only_unanswerable="check --from s1.pdtrace --only config",
    check_suppress="check --from s1.pdtrace --suppress PD101",
    check_suppress_room="check --from s1.pdtrace --suppress PD101=1862075447030261960",
    check_fail_on_info="check --from s1.pdtrace --fail-on info",
    check_fail_on_error="check --from old.pdtrace --fail-on error",
    stuck_older="stuck --from real.pdtrace --older 1h",
    stuck_by_rank="stuck --from real.pdtrace --by rank",
    stuck_after="stuck --from real.pdtrace --stuck-after 1s",
    diff_queues_stalled="diff-queues --from s1.pdtrace --stalled 1s",
    verify_routing_room="verify-routing --from real.pdtrace 3067605335166332913",
    verify_routing_room_unknown="verify-routing --from real.pdtrace 7",
    directory_ranks="ranks --from mixed",
    directory_diff_queues="diff-queues --from mixed",
    directory_check="check --from mixed",
    story_rid="story rid-7618fb4bb98a7959 --from s1.pdtrace",
    story_real="story 16851422098683615 --from real.pdtrace",
    story_unknown="story 7 --from s1.pdtrace",
    story_logs="story order-8841-try1 --from s1.pdtrace --logs router.log --logs decode.log",
    story_logs_unknown="story order-8842-try1 --from s1.pdtrace --logs router.log",
    record_from="record --from s1.pdtrace --salt golden --force out.pdtrace",
    record_from_in_part="record --from old.pdtrace --salt golden --force out.pdtrace",
    explore_model="explore --model ranks=2,requests=2 --policy no-gate --policy gate-zero --schedules 200",
    explore_trace="explore s1.pdtrace --policy no-gate --policy gate-zero",
    drill_show="drill show metadata-gate",
    drill_judge_holds="drill judge holds.jsonl",
    drill_judge_broken="drill judge broken.jsonl",
    drill_judge_cut_off="drill judge cut.jsonl",
)

_WITHOUT_RANKS = [
    Case("offline/story", ("story 1862075447030261960 --from s1.pdtrace",), ALL),
    Case("offline/bundle-planned", ("bundle --dry-run --from s1.pdtrace --output ticket.zip",)),
    Case("offline/report-markdown", ("report real.pdtrace --markdown",)),
    Case("offline/explain", ("explain PD101",), ALL),
    Case("offline/explain-all", ("explain",), ALL),
    Case("offline/drill-list", ("drill list",), ALL),
    Case(
        "offline/record-files",
        (
            "record --from s1.pdtrace --salt golden kept.pdtrace",
            "record --from s1.pdtrace --salt golden kept.pdtrace",
            "diff-queues --from kept.pdtrace",
            "story 1862075447030261960 --from s1.pdtrace --perfetto kept.json",
            "story 1862075447030261960 --from s1.pdtrace --perfetto kept.json",
            "story 1862075447030261960 --from s1.pdtrace --otlp kept.json",
        ),
    ),
    Case(
        "offline/context",
        (
            "context list",
            (
                "context add far --endpoint tcp://10.0.0.1:7311 --endpoint tcp://10.0.0.2:7311 --key alice --inject never"
                " --server-key dbb0ad1cd9d0f0c3f3d0ac8b2a3e3c4c2cb2a1b6a8df4d2d2f0a8a4a0c0e5b2a"
            ),
            "context add near --run-dir /srv/run --record-dir /srv/rec",
            "context add none",
            "context add 'no good'",
            "context list",
            "context list -o wide",
            "context list -o json",
            "context list -o csv",
            "context use near",
            "context list",
            "ranks",
            "--context far ranks",
            "--context nosuch ranks",
            "context use nosuch",
            "context use",
            "context list -o jsonl",
        ),
    ),
    Case(
        "offline/keys",
        (
            "keys list",
            "keys list -o json",
            "keys new server",
            "keys new alice -o json",
            "keys new alice",
            "keys new alice --replace",
            "keys new 'no good'",
            "keys list",
            "keys authorize alice --role observe",
            "keys authorize nobody --role observe",
            "keys authorize alice --role admin",
            "keys authorize alice",
            "keys authorize alice --role inject --name 'Alice of ops'",
            "keys list",
            "keys list -o wide",
            "keys list -o json",
            "keys list -o jsonl",
            "keys list -o csv",
            "keys list -o yaml",
            "keys revoke nobody",
            "keys revoke alice",
            "keys revoke alice",
            "keys list",
        ),
    ),
    Case("offline/version", ("--version", "", "nosuch", "--nosuch")),
    Case("offline/run", ("run", "run -- nosuch-command --option", "run nosuch-command")),
]

_USAGE = [
    Case(
        "usage/ranks", ("ranks --nosuch", "ranks extra", "ranks -o nosuch", "ranks --timeout soon", "ranks --timeout 0")
    ),
    Case(
        "usage/from",
        tuple(
            f"{line} --from {source}" for line in READERS.values() for source in ("nosuch.pdtrace", "empty", "text.txt")
        )
        + tuple(
            f"{line} --from {source}"
            for line in ("story 7", "record out.pdtrace")
            for source in ("nosuch.pdtrace", "empty", "text.txt")
        )
        + tuple(f"replay {source}" for source in ("nosuch.pdtrace", "empty", "text.txt"))
        + ("ranks --from ''", "ranks --from cut.pdtrace"),
    ),
    Case(
        "usage/diff-queues",
        ("diff-queues --nosuch", "diff-queues --through nosuch", "diff-queues --confirm 0", "diff-queues --stalled x"),
    ),
    Case("usage/stuck", ("stuck --by nosuch", "stuck --older x", "stuck --pause 20", "stuck --pause 5 --timeout 4")),
    Case(
        "usage/check",
        (
            "check --only nosuch",
            "check --skip nosuch",
            "check --fail-on nosuch",
            "check --suppress PD999",
            "check --suppress PD142=seven",
            "check --pause 60",
        ),
    ),
    Case(
        "usage/watch-option",
        (
            "ranks --watch soon",
            "ranks --watch -o json",
            "check --watch --from s1.pdtrace",
            "faults --watch --wait-for-hit x",
            "story 7 --watch",
        ),
    ),
    Case(
        "usage/export",
        (
            "export --listen 0.0.0.0:9477",
            "export --listen 9477",
            "export --listen 127.0.0.1:9477 --once",
            "export --every 1ms",
            "export --check 2h",
            "export --textfile metrics.txt --once",
            "export --textfile nosuch/pdctl.prom --once",
            "export nosuch",
        ),
    ),
    Case("usage/top", ("top --every x", "top --every 1h", "top nosuch")),
    Case(
        "usage/verify-routing",
        (
            "verify-routing seven",
            "verify-routing --bootstrap nosuch",
            "verify-routing --grace x",
            "verify-routing -- -1",
        ),
    ),
    Case("usage/stacks", ("stacks --rank nosuch", "stacks --samples 0", "stacks --every x", "stacks --rank ''")),
    Case(
        "usage/dump",
        (
            "dump",
            "dump nosuch",
            "dump metadata --rank nosuch",
            "dump metadata --slot -1",
            "dump metadata --room seven",
            "dump metadata --room 0",
            "dump queues --from s1.pdtrace",
            "dump queues --rank nosuch",
            "dump config --from s1.pdtrace",
            "dump config --rank nosuch",
            "dump groups --rank nosuch",
            "dump leaks --rank decode",
            "dump leaks --for x",
            "dump leaks --for 1h",
        ),
    ),
    Case(
        "usage/story",
        (
            "story",
            "story ''",
            "story 7 --through nosuch",
            "story 7 --from s1.pdtrace --plot picture.txt",
            "story 7 8",
            "story 7 --from s1.pdtrace --logs nosuch.log",
        ),
    ),
    Case(
        "usage/record",
        (
            "record",
            "record nosuch/out.pdtrace --from s1.pdtrace",
            "record out.txt --from s1.pdtrace",
            "record s1.pdtrace --from s1.pdtrace",
            "record out.pdtrace --trigger nosuch",
            "record out.pdtrace --trigger diverged",
            "record out.pdtrace --for 1s --from s1.pdtrace",
            "record out.pdtrace --max-size x",
            "record out.pdtrace --keep-names --salt words --from s1.pdtrace",
        ),
    ),
    Case(
        "usage/bundle",
        (
            "bundle --from nosuch.zip",
            "bundle --from s1.pdtrace --output s1.pdtrace",
            "bundle --from s1.pdtrace --format nosuch",
        ),
    ),
    Case(
        "usage/report",
        (
            "report",
            "report nosuch.zip",
            "report s1.pdtrace --output s1.pdtrace",
            "report router.log --markdown",
        ),
    ),
    Case(
        "usage/replay",
        (
            "replay",
            "replay s1.pdtrace --gate nosuch",
            "replay s1.pdtrace --queue nosuch",
            "replay s1.pdtrace --engine nosuch",
            "replay s1.pdtrace --engine sglang",
            "replay s1.pdtrace --backend nosuch",
            "replay s1.pdtrace --model ranks=2,requests=2",
            "replay --explore",
            "replay s1.pdtrace --fleet ranks=10000",
            "replay s1.pdtrace --emit-test",
            "replay old.pdtrace",
        ),
    ),
    Case(
        "usage/explore",
        (
            "explore",
            "explore s1.pdtrace --model ranks=2,requests=2",
            "explore --model ranks=0",
            "explore --model nosuch=1",
            "explore --model ranks=2,requests=2 --policy nosuch",
            "explore --model ranks=2,requests=2 --device nosuch",
            "explore --model ranks=2,requests=2 --exhaustive --schedules 3",
            "explore s1.pdtrace --gate on",
            "explore old.pdtrace",
        ),
    ),
    Case(
        "usage/inject",
        (
            "inject",
            "inject --rank decode:tp1",
            "inject --rank nosuch --drop-metadata",
            "inject --rank decode:tp1 --drop-metadata --corrupt-room",
            "inject --rank decode:tp1 --delay-metadata x",
            "inject --rank decode:tp1 --drop-metadata --for 1h",
            "inject --rank decode:tp1 --drop-metadata --share 200%",
            "inject --rank decode:tp1 --drop-metadata --stop-when nosuch",
            "inject --rank decode:tp1 --drop-metadata --stop-when diverged --detach",
            "inject --rank decode:tp1 --flip-poll nosuch",
            "inject --rank decode:tp1 --misroute x",
            "inject --rank decode:tp1 --drop-metadata --room 0",
        ),
    ),
    Case("usage/faults", ("faults --nosuch", "faults --wait-for-hit nosuch --within x", "faults --available --past")),
    Case("usage/heal", ("heal", "heal f-1 --all", "heal f-1 f-2")),
    Case(
        "usage/drill",
        (
            "drill",
            "drill show nosuch",
            "drill show text.txt",
            "drill show bad.yaml",
            "drill run nosuch",
            "drill run metadata-gate --control",
            "drill run metadata-gate --load nosuch",
            "drill judge nosuch.jsonl",
            "drill judge text.txt",
            "drill judge empty",
        ),
    ),
    Case(
        "usage/attach",
        ("attach", "attach seven", "attach --all 7", "attach --all --arm", "attach --inject-agent --remove-agent 7"),
    ),
    Case(
        "usage/context",
        ("context", "context nosuch", "context add", "context add x --inject maybe", "context add x --endpoint y"),
    ),
    Case("usage/clean", ("clean --nosuch", "clean extra")),
    Case("usage/keys", ("keys", "keys new", "keys authorize", "keys revoke")),
    Case("usage/explain", ("explain PD999", "explain 101", "explain pd101", "explain PD101 PD102")),
    Case(
        "usage/lab",
        (
            "lab",
            "lab up --prefill nosuch",
            "lab up --without nosuch",
            "lab up --transport nosuch",
            "lab up --name ''",
            "lab up --load-balance nosuch",
            "lab load --to nosuch",
            "lab load -c 0",
        ),
    ),
    Case("usage/demo", ("demo --timeout x", "demo extra")),
]

# ---- no server at all ------------------------------------------------------------------------------------------------

_NOBODY = [
    Case(
        f"nobody/{line.replace(' --', ' ').replace(' ', '-')}",
        (line,),
        ("narrow", "json"),
    )
    for line in (
        "ranks",
        "diff-queues",
        "stuck",
        "check",
        "verify-routing",
        "stacks",
        "dump metadata",
        "dump queues",
        "dump groups",
        "dump config",
        "dump leaks",
        "story 7",
        "record out.pdtrace",
        "faults",
        "faults --available",
        "heal --all",
        "attach --all",
        "clean --dry-run",
        "clean",
        "lab status",
        "lab load",
        "lab down",
    )
] + [
    Case(
        "nobody/inject",
        ("inject --rank decode:tp1 --drop-metadata --dry-run", "inject --rank decode:tp1 --drop-metadata"),
    ),
    Case("nobody/drill-run", ("drill run metadata-gate --journal journal.jsonl",)),
    Case("nobody/faults-wait", ("faults --wait-for-hit f-1 --within 1s",)),
    Case("nobody/attach-pid", ("attach 4194304",), ("narrow", "json")),
    Case(
        "nobody/endpoint",
        (
            "--endpoint tcp://127.0.0.1:1 ranks",
            "--endpoint nosuch ranks",
            "--endpoint '' ranks",
            "--store 127.0.0.1:1 ranks --timeout 2",
            "--store '' ranks",
            "--key nosuch ranks",
            "--server-key nosuch ranks",
        ),
    ),
]

# ---- live ------------------------------------------------------------------------------------------------------------

_ORDER = "which of two ranks is first differs from run to run"
_AGE = "what goes depends on when a recording was written to last, and the order of the files on the directory"
_LUCK = "where a rank that goes round its loop is at a look is a matter of luck"

_HEALTHY = (
    _many(
        "healthy",
        LIVE_ALL,
        ranks="ranks",
        diff_queues="diff-queues",
        stuck="stuck --pause 100ms",
        check_without_leaks="check --pause 100ms --skip leaks",
        verify_routing="verify-routing",
        dump_groups="dump groups",
    )
    + _many(
        "healthy",
        LIVE_LOOK,
        dump_metadata="dump metadata",
        dump_queues="dump queues",
        faults="faults",
        faults_past="faults --past",
        heal_all="heal --all",
        attach="attach --all",
        clean="clean --dry-run",
        diff_queues_sockets="diff-queues --through sockets",
        diff_queues_recordings="diff-queues --through recordings",
        diff_queues_from="diff-queues --from {rec}",
        stacks_rank_none="stacks --no-collectives --rank decode:tp7",
        dump_metadata_rank="dump metadata --rank decode:tp1",
        dump_queues_rank="dump queues --rank decode:tp1",
        dump_queues_rank_none="dump queues --rank decode:tp7",
        dump_config_rank="dump config --rank prefill:*",
        dump_groups_rank="dump groups --rank prefill:*",
        dump_queues_room_unknown="dump queues --room 7",
        verify_routing_room_unknown="verify-routing 7",
        check_only="check --only queues --fail-on error",
        story_unknown="story 7",
        lab_status="lab status",
    )
    + _many(
        "healthy",
        ("narrow", *LIVE_LOOK),
        faults_available="faults --available",
        dump_config="dump config",
    )
    + [
        Case("healthy/check", ("check --pause 2s",), TWO),
        Case("healthy/dump-leaks", ("dump leaks --for 2s",), ("narrow", "table", "json")),
        Case("healthy/story", ("story 4001",), TWO, brief=_ORDER),
        Case("healthy/stacks", ("stacks --no-collectives",), TWO, brief=_LUCK),
        Case(
            "healthy/record",
            (
                "record --salt golden out.pdtrace",
                "record --salt golden out.pdtrace",
                "record --salt golden --force out.pdtrace -o json",
                "record --salt golden --force --for 300ms out.pdtrace",
                "diff-queues --from out.pdtrace",
            ),
        ),
        Case(
            "healthy/inject",
            (
                "inject --rank decode:tp1 --delay-metadata 1s --dry-run",
                "inject --rank decode:tp1 --delay-metadata 1s --dry-run -o json",
                "inject --rank decode:tp1 --delay-metadata 1s --room 4900 --detach",
                "faults",
                "faults -o wide",
                "faults -o json",
                "inject --rank decode:tp1 --delay-metadata 1s --room 4901 --detach",
                "heal nosuch",
                "heal --all",
                "heal --all",
                "faults --past",
                "inject --rank decode:tp1 --drop-metadata --room 4900 --for 300ms",
                "inject --rank decode:tp1 --drop-metadata --room 4900 --for 300ms -o json",
                "inject --rank decode --drop-metadata --room 4900",
                "inject --rank decode:tp7 --drop-metadata --room 4900",
                "inject --rank prefill:tp0 --drop-metadata --room 4900 --dry-run",
                "faults --wait-for-hit nosuch --within 1s",
            ),
        ),
    ]
)

_WAITING = (
    _many(
        "waiting",
        LIVE_ALL,
        stuck="stuck --pause 100ms --stuck-after 1h",
        dump_metadata="dump metadata",
        dump_queues="dump queues",
        verify_routing="verify-routing",
    )
    + _many(
        "waiting",
        LIVE_LOOK,
        diff_queues="diff-queues",
        stuck_found="stuck --pause 100ms --stuck-after 100ms",
        stuck_by_rank="stuck --pause 100ms --stuck-after 1h --by rank",
        dump_metadata_room="dump metadata --room 4100",
        dump_queues_room="dump queues --room 4100",
        verify_routing_room="verify-routing 4100",
    )
    + [
        Case("waiting/dump-leaks", ("dump leaks --for 2s",), TWO),
        Case("waiting/story", ("story 4100",), TWO, brief=_ORDER),
    ]
)

ACTING = ("heal", "inject")
"""Commands that wait for a stopped rank as long as for any other."""
_STOPPED = [
    *_many(
        "stopped",
        TWO,
        **{
            f"{name.replace('-', '_').replace(' ', '_')}": f"{line} --rank-timeout {'1s' if name in ACTING else '10s'}"
            for name, line in {
                "ranks": "ranks",
                "diff-queues": "diff-queues",
                "stuck": "stuck --pause 100ms",
                "check": "check --pause 2s",
                "verify-routing": "verify-routing",
                "dump metadata": "dump metadata",
                "dump queues": "dump queues",
                "dump config": "dump config",
                "dump leaks": "dump leaks --for 2s",
                "faults": "faults",
                "faults available": "faults --available",
                "heal": "heal --all",
                "record": "record --salt golden --force out.pdtrace",
                "inject": "inject --rank decode:tp1 --drop-metadata --room 4900 --for 1s --dry-run",
            }.items()
        },
    ),
    Case(
        "stopped/stacks",
        ("stacks --no-collectives --no-outside --rank decode:* --rank-timeout 10s",),
        TWO,
        brief="how long its peer has waited for it at a look is a matter of luck",
    ),
    Case("stopped/dump-groups", ("dump groups",), TWO),
    Case("stopped/story", ("story 4001",), TWO, brief=_ORDER),
]

_HUNG = [
    *_many(
        "hung",
        LIVE_LOOK,
        ranks="ranks",
        diff_queues="diff-queues",
        diff_queues_sockets="diff-queues --through sockets",
        diff_queues_recordings="diff-queues --through recordings",
        stuck="stuck --pause 100ms --stuck-after 1h",
        check_suppress="check --pause 100ms --skip leaks --skip stuck --suppress PD101",
        check_only="check --only queues --fail-on error",
        verify_routing="verify-routing",
        stacks="stacks --rank decode:*",
        dump_metadata="dump metadata",
        dump_queues="dump queues",
        dump_config="dump config",
        faults="faults",
    ),
    Case("hung/check", ("check --pause 100ms --skip stuck --skip leaks",), TWO),
    Case("hung/dump-leaks", ("dump leaks --for 2s",), TWO),
    Case("hung/story", ("story 5000",), TWO, brief=_ORDER),
    Case(
        "hung/record",
        (
            "record --salt golden out.pdtrace",
            "diff-queues --from out.pdtrace",
            "diff-queues --from out.pdtrace -o json",
            "check --from out.pdtrace",
            "dump metadata --from out.pdtrace",
        ),
    ),
    Case(
        "hung/record-stuck",
        ("record --salt golden --force out.pdtrace", "stuck --from out.pdtrace"),
        brief="whether prefill let go before or after the last turn of decode's loop is a matter of luck",
    ),
]

_DEAD = [
    *_many(
        "dead",
        TWO,
        ranks="ranks",
        diff_queues="diff-queues",
        stuck="stuck --pause 100ms",
        check="check --pause 100ms",
        verify_routing="verify-routing",
        stacks="stacks",
        dump_metadata="dump metadata",
        dump_queues="dump queues",
        dump_groups="dump groups",
        dump_config="dump config",
        dump_leaks="dump leaks --for 2s",
        faults="faults",
        faults_available="faults --available",
        heal="heal --all",
        record="record --salt golden --force out.pdtrace",
        lab_status="lab status",
        inject="inject --rank decode:tp1 --drop-metadata --dry-run",
    ),
    Case("dead/story", ("story 5000",), TWO, brief=_ORDER),
    Case("dead/clean", ("clean --dry-run", "clean --all --dry-run"), ("table",), brief=_AGE),
]

_OUTSIDE = _many(
    "outside",
    LIVE_LOOK,
    ranks="ranks",
    diff_queues="diff-queues",
    stuck="stuck --pause 100ms --stuck-after 1h",
    check="check --pause 100ms --skip stuck --rank-timeout 20s --timeout 60s",
    verify_routing="verify-routing",
    stacks="stacks --no-collectives --rank-timeout 20s --timeout 60s",
    dump_metadata="dump metadata",
    dump_queues="dump queues",
    dump_groups="dump groups",
    dump_config="dump config",
    dump_leaks="dump leaks --for 2s",
    attach="attach --all",
    attach_pid="attach {pid}",
    attach_other="attach {other}",
) + _many(
    "outside",
    TWO,
    story="story 12",
    record="record --salt golden --force out.pdtrace",
    faults="faults",
    faults_available="faults --available",
    heal="heal --all",
    inject="inject --rank decode:tp1 --drop-metadata --dry-run",
    clean="clean --dry-run",
)

CASES: list[Case] = [
    *_READ,
    *_SELECTED,
    *_WITHOUT_RANKS,
    *_USAGE,
    *_NOBODY,
    *_HEALTHY,
    *_WAITING,
    *_STOPPED,
    *_HUNG,
    *_DEAD,
    *_OUTSIDE,
]
