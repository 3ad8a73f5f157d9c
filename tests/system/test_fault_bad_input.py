"""What can be typed wrong, or written to where nothing can be written: named, with the exit code it has everywhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cli_server
from tests.support.cluster import INJECT, Cluster
from tests.support.patience import patience

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("ranks"))
    made.pair()
    (made.folder / "empty").write_text("")
    (made.folder / "binary").write_bytes(bytes(range(256)) * 10)
    (made.folder / "typo.yaml").write_text("name: x\nabout: y\nfault:\n  kind: delay-metadata\n  rnk: [tp1]\n")
    (made.folder / "wrong.yaml").write_text("name: x\nabout: y\nfor: 20m\nload: lab\n")
    yield made
    made.close()


def shell(cluster: Cluster, command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run what a user types, with ``pdctl`` for this pdctl and ``@`` for the test's directory."""
    if not {">", "|"} & set(command):
        *given, command = re.fullmatch(r"(?:(\w+=\S+) (\w+=\S+) )?pdctl (.*)", command).groups()
        env = {**cluster.env, **env, **dict(one.split("=") for one in given if one)}
        env, words = ({k: v.replace("@", str(cluster.folder)) for k, v in env.items()}, shlex.split(command))
        return cli_server.run([word.replace("@", str(cluster.folder)) for word in words], env, limit_s=90)
    text = command.replace("pdctl", f"{sys.executable} -m pdctl.cli").replace("@", shlex.quote(str(cluster.folder)))
    return subprocess.run(
        ["bash", "-c", text], cwd=Path(__file__).parents[2], env={**cluster.env, **env}, capture_output=True, text=True,
        timeout=patience(90), check=False,
    )  # fmt: skip


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


DELAY = "pdctl inject --rank tp1 --delay-metadata"
WRONG = [
    (f"{DELAY} 1s --for 1000h", 5, "--for '1000h' is over the limit of 15m"),
    (f"{DELAY} 1s --for 20m", 5, "--for '20m' is over the limit of 15m"),
    (f"{DELAY} 1s --for 99999999999999h", 5, "over the limit of 15m"),
    (f"{DELAY} 20m --for 15m", 5, "--delay-metadata '20m' is over the limit of 15m"),
    (f"{DELAY} 1s --for 0s", 2, "zero"),
    (f"{DELAY} 1s --for=-5s", 2, "negative"),
    (f"{DELAY} 1s --for soon", 2, "is not a duration"),
    (f"{DELAY} 1s --share 0%", 2, "no share"),
    (f"{DELAY} 1s --share 101%", 2, "no share"),
    (f"{DELAY} 1s --share abc", 2, "no share"),
    (f"{DELAY} 1s --share nan", 2, "no share"),
    (f"{DELAY} 1s --hits 0", 2, "--hits"),
    (f"{DELAY} 1s --hits -1", 2, "--hits"),
    (f"{DELAY} 1s --room 0", 2, "--room"),
    (f"{DELAY} 1s --room 18446744073709551616", 2, "--room"),
    (f"{DELAY} 1s --room 3 --rid x", 2, "--room or --rid"),
    (f"{DELAY} 1s --rid nobody", 3, "no rank has a request nobody"),
    (f"{DELAY} 1s --until-hit --detach", 2, "pdctl faults --wait-for-hit"),
    (f"{DELAY} 1s --stop-when diverged --detach", 2, "none knows the queues of another"),
    (f"{DELAY} 1s --stop-when failed:0", 2, "failed:N"),
    ("pdctl inject --rank tp1 --no-such-fault", 2, "No such option"),
    ("pdctl inject --rank tp1 --flip-poll Success", 5, "no seam fault.flip-poll"),
    ("pdctl inject --rank tp9 --delay-metadata 1s", 2, "no decode rank matches tp9"),
    ("pdctl inject --rank '' --delay-metadata 1s", 2, "a part is empty"),
    ("pdctl inject --rank prefill --misroute abc", 2, "no dp rank"),
    ("pdctl faults --wait-for-hit nope", 3, "no rank knows fault nope"),
    ("pdctl faults --within 0s", 2, "zero"),
    ("pdctl faults -o xml", 2, "xml"),
    ("pdctl heal", 2, "name one fault, or --all"),
    ("pdctl heal --all f-1", 2, "name one fault, or --all"),
    ("pdctl drill show @/empty", 2, "line 1: a drill file is a mapping"),
    ("pdctl drill show @/binary", 2, "not UTF-8"),
    ("pdctl drill show @", 2, "is a directory, not a regular file"),
    ("pdctl drill show @/none.yaml", 2, "No such file"),
    ("pdctl drill run @/typo.yaml", 2, "line 5: fault.rnk"),
    ("pdctl drill run @/wrong.yaml", 2, "line 3: for"),
    ("pdctl drill judge @/empty", 4, "is empty"),
    ("pdctl drill judge @/binary", 4, "no journal"),
    ("pdctl drill judge @", 4, "is a directory, not a regular file"),
    ("pdctl drill run metadata-gate --cluster nope", 2, "no rank of a cluster"),
    ("pdctl drill run metadata-gate --journal @", 2, "can't be made"),
]


@pytest.mark.parametrize(("command", "code", "says"), WRONG, ids=[command for command, _, _ in WRONG])
def test_wrong_input_is_named(cluster, command, code, says):
    done = shell(cluster, command)
    assert (done.returncode, done.stdout) == (code, ""), done
    assert says in words(done.stderr)
    assert "Traceback" not in done.stderr


def test_nothing_was_placed_by_all_that(cluster):
    assert cluster.faults("--past") == []


LISTS = ("pdctl faults", "pdctl faults --available", "pdctl heal --all", "pdctl drill list", "pdctl ranks")


@pytest.mark.parametrize("command", LISTS)
def test_a_result_that_can_not_be_written(cluster, command):
    full = shell(cluster, f"{command} >/dev/full")
    assert full.returncode == 3, full
    assert "standard output can't be written: No space left" in full.stderr
    assert "Traceback" not in full.stderr
    for closed in (f"set -o pipefail; {command} | head -1 | wc -l", f"{command} >&-"):
        done = shell(cluster, closed)
        assert (done.returncode, done.stderr) == (0, ""), done


def test_a_detached_fault_whose_id_can_not_be_told_is_taken_back(cluster):
    done = shell(cluster, f"{DELAY} 1s --for 10m --detach >/dev/full")
    assert done.returncode == 3, done
    assert "standard output can't be written" in done.stderr
    assert cluster.faults() == []


def test_an_inject_that_can_say_nothing_goes_on_and_heals(cluster):
    done = shell(cluster, f"{DELAY} 200ms --for {patience(3):.0f}s -o json 2>/dev/full")
    assert done.returncode == 0, done
    assert '"healed": true' in done.stdout
    assert cluster.faults() == []


@pytest.mark.parametrize("columns", [60, 80])
def test_faults_can_be_read_on_a_narrow_terminal(cluster, columns):
    fault = cluster.run(*INJECT, "5m", "--for", "10m", "--detach").stdout.strip()
    done = shell(cluster, "pdctl faults", COLUMNS=str(columns))
    assert cluster.run("heal", fault).returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= columns
    for whole in (fault, "delay-metadata 5m", "aims at decode dp0 pp0 tp1", "placed on prefill dp0 pp0 tp0", "held"):
        assert whole in done.stdout


@pytest.mark.parametrize("form", ["table", "json", "csv"])
@pytest.mark.parametrize("command", ["ranks", "diff-queues", "faults", "heal --all", f"{DELAY.partition(' ')[2]} 1s"])
def test_without_ranks_nothing_is_on_standard_output_in_any_format(cluster, command, form):
    place = "PDCTL_RUN_DIR=@/none PDCTL_RECORD_DIR=@/none"
    done = shell(cluster, f"{place} pdctl {command} -o {form}")
    assert (done.returncode, done.stdout) == (4, ""), done
    assert "no ranks found" in done.stderr


def test_a_rank_that_never_registered_has_no_pid(tmp_path):
    made = Cluster(tmp_path)
    try:
        made.rank("decode", "--tp", "0", "--size", "2")
        done = made.run("faults", "--available")
        assert done.returncode == 3, done
        assert "decode dp0 pp0 tp1: no agent of this rank registered here" in done.stderr
    finally:
        made.close()
