"""Nodesets, files of hosts and ranges of ports: what they stand for, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets.hostlist import MAX_HOSTS, fold, parse_hosts
from pdctl.targets.places import MAX_ENDPOINTS, parse_places


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", "login"),
        ("a,b c", "a b c"),
        ("gpu[001-003,070]", "gpu001 gpu002 gpu003 gpu070"),
        ("gpu[8-11]", "gpu8 gpu9 gpu10 gpu11"),
        ("gpu[098-101]", "gpu098 gpu099 gpu100 gpu101"),
        ("r[1-2]n[0-1]-ib", "r1n0-ib r1n1-ib r2n0-ib r2n1-ib"),
        ("root@gpu[1-2],gpu1,gpu1", "root@gpu1 root@gpu2 gpu1"),
        ("", ""),
    ],
)
def test_a_nodeset_is_what_slurm_means_by_it(text: str, hosts: str) -> None:
    assert parse_hosts(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=id", "gpu[1-2", "gpu1]", "gpu[]", "gpu[a-b]", "gpu[3-1]", "gpu[1-999999999]", "a;id", "$(id)", "a/b",
        "user@-x", "gpu[1-4096],more", "x\ny\x1b", "@/no/such/file", "gpu[1-100][1-100]",
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused_and_reaches_no_command_line(text: str) -> None:
    with pytest.raises(PdctlError) as error:
        parse_hosts(text)
    assert error.value.code is Exit.USAGE
    assert error.value.next_step
    assert "\x1b" not in error.value.message


def test_a_file_of_hosts_may_be_one_of_mpi(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the cluster\ngpu[1-2] slots=8\n\nlogin # not a rank\n")
    assert parse_hosts(f"@{file},more") == ("gpu1", "gpu2", "login", "more")
    file.write_text("# nothing\n")
    with pytest.raises(PdctlError, match="names no host"):
        parse_hosts(f"@{file}")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PdctlError, match="no list of hosts"):
        parse_hosts(f"@{file}")


@given(st.lists(st.integers(0, 1200), min_size=1, max_size=40), st.sampled_from(["gpu{}", "gpu{:03d}", "r{}-x"]))
def test_a_folded_nodeset_means_the_same_hosts(numbers: list[int], form: str) -> None:
    hosts = [form.format(number) for number in numbers]
    assert set(parse_hosts(fold(hosts))) == set(hosts)


def test_endpoints_by_ranges_of_hosts_and_ports() -> None:
    places = parse_places({"PDCTL_ENDPOINT": "tcp://gpu[01-02]:7000-7001, [::1]:5-6 h:1"})
    assert places.endpoints == (
        "tcp://gpu01:7000", "tcp://gpu01:7001", "tcp://gpu02:7000", "tcp://gpu02:7001",
        "tcp://[::1]:5", "tcp://[::1]:6", "tcp://h:1",
    )  # fmt: skip
    assert len(parse_places({"PDCTL_ENDPOINT": "tcp://gpu[0001-1024]:7000-7007"}).endpoints) == MAX_ENDPOINTS
    for text in ("h:5-4", "h:0-1", "h:65535-65536", "gpu[0001-2048]:7000-7007", "h:1-99999"):
        with pytest.raises(PdctlError) as error:
            parse_places({"PDCTL_ENDPOINT": text})
        assert error.value.code is Exit.USAGE


def test_hosts_and_the_way_to_them_are_places() -> None:
    places = parse_places({"PDCTL_HOSTS": "gpu[01-64]", "PDCTL_VIA": "srun -w {host} '/opt/my pdctl'"})
    assert len(places.hosts) == 64
    assert places.via == ("srun", "-w", "{host}", "/opt/my pdctl")
    assert places.elsewhere == ("gpu[01-64]",)
    assert places.here().hosts == ()
    for env in ({"PDCTL_VIA": "ssh pdctl"}, {"PDCTL_VIA": "ssh {host} 'pdctl"}, {"PDCTL_HOSTS": f"n[0-{MAX_HOSTS}]"}):
        with pytest.raises(PdctlError) as error:
            parse_places(env)
        assert error.value.code is Exit.USAGE
