"""pdctl export, scraped by a real Prometheus while a lab diverges and is started again; what is in deploy/ is used as it is."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.faults.limits import DEFAULT_TTL_S, MAX_TTL_S
from tests.support.labs import Labs
from tests.support.patience import patience, until
from tools.provision import find_program

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROMETHEUS = find_program("prometheus", "prometheus")
PROMTOOL = find_program("promtool", "prometheus")


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=patience(20)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Prometheus:
    """A Prometheus with the scrape configuration and the rules of deploy/, that looks every second."""

    def __init__(self, folder: Path, target: str) -> None:
        shutil.copy(DEPLOY / "export-rules.yml", folder)
        config = yaml.safe_load((DEPLOY / "export-scrape.yml").read_text())
        [job] = config["scrape_configs"]
        job["scrape_interval"] = "1s"
        job["static_configs"][0]["targets"] = [target]
        config["global"] = {"evaluation_interval": "1s"}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        words = [
            PROMETHEUS,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of a query, none while Prometheus does not answer yet."""
        where = f"http://127.0.0.1:{self.port}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
        try:
            code, text = get(where)
        except OSError:
            return []
        if code == 503:
            return []
        answer = json.loads(text)
        assert answer["status"] == "success", (expr, answer)
        return answer["data"]["result"]

    def value(self, expr: str) -> float | None:
        found = self.query(expr)
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        return {one["metric"]["alertname"] for one in self.query('ALERTS{alertstate="firing"}')}

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(patience(10))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def dashboard_queries() -> Iterator[str]:
    for panel in json.loads((DEPLOY / "export-dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "10s")
            yield expr.replace('"$job"', '".*"').replace('"$cluster"', '".*"')


def promtool(*words: object, given: str = "") -> None:
    done = subprocess.run([PROMTOOL, *words], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lint" not in done.stderr, done.stderr


def liveness(port: int) -> int:
    """Run the probe of the example of a sidecar, as a kubelet does, and return its exit code."""
    sidecar = yaml.safe_load((DEPLOY / "kubernetes" / "export" / "sidecar.yaml").read_text())
    engine, _ = sidecar["spec"]["template"]["spec"]["containers"]
    words = engine["livenessProbe"]["exec"]["command"]
    assert "127.0.0.1:9477" in words[-1]
    return subprocess.run([*words[:-1], words[-1].replace("9477", str(port))], check=False).returncode


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: make setup has it")
@pytest.mark.parametrize(("lasts_s", "fires"), [(MAX_TTL_S, True), (DEFAULT_TTL_S, False)])
def test_the_longest_fault_fires_its_alert_and_a_usual_one_does_not(
    tmp_path: Path, lasts_s: float, fires: bool
) -> None:
    shutil.copy(DEPLOY / "export-rules.yml", tmp_path)
    fault = {"series": 'pdctl_faults_active{job="pdctl", service="s"}', "values": f"0x9 1x{int(lasts_s / 5) - 1} 0x99"}
    fired = "count(max_over_time(ALERTS{alertname='PdctlFaultInPlace', alertstate='firing'}[20m]))"
    asked = {"expr": fired, "eval_time": "20m", "exp_samples": [{"labels": "{}", "value": 1}] * fires}
    test = {"interval": "5s", "input_series": [fault], "promql_expr_test": [asked]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["export-rules.yml"], "evaluation_interval": "5s", "tests": [test]}))
    promtool("test", "rules", file)


@pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="no prometheus and promtool here: make setup has them"
)
def test_a_divergence_is_scraped_fires_its_alert_and_is_over_after_a_restart(labs: Labs, tmp_path: Path) -> None:
    promtool("check", "rules", DEPLOY / "export-rules.yml")
    lab = labs.up("--without", "gate")
    textfile = tmp_path / "pdctl.prom"
    every = ("--every", "500ms", "--check", "5s", "--livez-stall", "5s")
    export = labs.start("export", "--listen", "127.0.0.1:0", "--textfile", textfile, *every)
    prometheus = None
    try:
        assert export.stderr is not None
        url = export.stderr.readline().split()[-1]
        port = int(url.rpartition(":")[2])
        prometheus = Prometheus(tmp_path, f"127.0.0.1:{port}")

        # Healthy: it is in step, nothing fires, and a probe has nothing against it.
        lab.load(requests=6)
        until("rounds are counted", lambda: prometheus.value("sum(pdctl_group_rounds_total) > 0"))
        until("a whole check is told", lambda: prometheus.value("pdctl_check_timestamp_seconds"))
        assert prometheus.value("sum(pdctl_group_diverged)") == 0
        assert prometheus.value('sum(pdctl_ranks{state="live"})') == prometheus.value("pdctl_look_ranks") == 3
        assert prometheus.value('sum(pdctl_findings{kind="cause", level!="info"})') == 0
        assert prometheus.firing() == set()
        assert (get(f"{url}/livez")[0], liveness(port)) == (200, 0)
        code, text = get(f"{url}/metrics")
        assert code == 200
        for one in (text, textfile.read_text()):
            promtool("check", "metrics", given=one)
        turns = prometheus.value("sum(pdctl_turns_total)")

        # Diverged.
        lab.inject_late_metadata(delay="2s")
        load = threading.Thread(target=lambda: lab.load(requests=1, seconds=4), daemon=True)
        load.start()
        until("the alert fires", lambda: "PdctlGroupDiverged" in prometheus.firing())
        assert prometheus.value('pdctl_group_diverged{role="decode"} == 1')
        until("its cause is counted", lambda: prometheus.value('pdctl_findings{code="PD101", kind="cause"} == 1'))
        assert prometheus.firing() == {"PdctlGroupDiverged"}
        code, text = get(f"{url}/livez")
        assert code == 503
        assert "diverged at round" in text
        assert liveness(port) == 1
        assert "pdctl_group_diverged" in textfile.read_text()
        without = [expr for expr in dashboard_queries() if not prometheus.query(expr)]
        assert not without, "queries of the dashboard that give nothing"
        room = re_rooms(get(f"{url}/metrics")[1])
        assert not room, "a room is a label"

        # Started again: it is over, and no counter went down.
        labs.cli("lab", "down", "--name", lab.name)
        load.join(patience(30))
        lab = labs.up("--without", "gate")
        lab.load(requests=2)
        until("the alert is over", lambda: prometheus.firing() == set() and prometheus.query("ALERTS") == [])
        until("the new ranks are told", lambda: prometheus.value('sum(pdctl_ranks{state="live"})') == 3)
        assert (get(f"{url}/livez")[0], liveness(port)) == (200, 0)
        assert prometheus.value("sum(pdctl_turns_total)") > turns
        assert prometheus.query("resets(pdctl_turns_total[10m]) > 0") == []
        assert prometheus.query("resets(pdctl_group_rounds_total[10m]) > 0") == []

        # Ended in good order: what nobody looks at any more is not told.
        export.send_signal(signal.SIGTERM)
        assert export.wait(patience(20)) == 0
        assert not textfile.exists()
        until("it is missed", lambda: prometheus.value('up{job="pdctl"}') == 0)
        assert liveness(port) == 0
    finally:
        if prometheus is not None:
            prometheus.close()
        export.kill()
        export.communicate()


def re_rooms(text: str) -> list[str]:
    """Return values of labels that look like a room: a number over a million."""
    import re

    return re.findall(r'="[0-9]{7,}"', text)
