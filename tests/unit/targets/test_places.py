"""Where ranks are looked for: what the environment says is parsed once, and nothing is opened for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets.places import MAX_ENDPOINTS, OutsideSetting, Store, parse_places

KEY = "ab" * 32


def test_what_is_named_is_told_from_the_usual_places() -> None:
    usual = parse_places({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert usual.run_dirs[0] == Path("/run/user/7/pdctl")
    assert len(usual.run_dirs) == 2
    assert not any(usual.named(folder) for folder in (*usual.run_dirs, usual.record_dir))
    named = parse_places({"PDCTL_RUN_DIR": "/a", "PDCTL_RECORD_DIR": "/b", "XDG_RUNTIME_DIR": "/run/user/7"})
    assert (named.run_dirs, named.record_dir) == ((Path("/a"),), Path("/b"))
    assert named.named(Path("/a"))
    assert named.named(Path("/b"))
    assert not named.named(Path("/c"))


def test_places_on_other_hosts_and_their_keys() -> None:
    env = {
        "PDCTL_ENDPOINT": "h:1, tcp://h:1 tcp://[::1]:2",
        "PDCTL_STORE": "off s:3 env",
        "MASTER_ADDR": "m",
        "MASTER_PORT": "4",
        "PDCTL_SERVER_KEY": KEY.upper(),
        "PDCTL_KEY": "alice",
        "PDCTL_KEYS": "/keys",
        "XDG_CACHE_HOME": "/cache",
    }
    places = parse_places(env)
    assert places.endpoints == ("tcp://h:1", "tcp://[::1]:2")
    assert places.stores == (Store("s", 3), Store("m", 4))
    assert (places.server_key, places.key, places.keys_dir) == (KEY, "alice", Path("/keys"))
    assert places.cache == Path("/cache/pdctl/reached.json")
    assert places.elsewhere == ("tcp://h:1", "tcp://[::1]:2", "store s:3", "store m:4")
    assert places.here().elsewhere == ()
    assert parse_places({"PDCTL_STORE": "off"}).elsewhere == ()


def test_a_user_without_a_home_needs_none_until_a_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    places = parse_places({"PDCTL_ENDPOINT": "tcp://h:1"})
    assert (places.cache, places.keys_dir) == (None, None)
    with pytest.raises(PdctlError, match="no home"):
        places.own_keys()


@pytest.mark.parametrize(
    "said",
    [
        {"PDCTL_ENDPOINT": "h"},
        {"PDCTL_ENDPOINT": "h:65536"},
        {"PDCTL_ENDPOINT": " ".join(f"h:{n}" for n in range(1, MAX_ENDPOINTS + 2))},
        {"PDCTL_STORE": "env"},
        {"PDCTL_STORE": "nowhere"},
        {"PDCTL_ENDPOINT": "h:1", "PDCTL_SERVER_KEY": "short"},
        {"PDCTL_OUTSIDE": "some"},
        {"PDCTL_CONTAINERS": "some"},
    ],
)
def test_a_value_that_means_nothing_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(PdctlError) as refused:
        parse_places(said)
    assert refused.value.code is Exit.USAGE


def test_which_processes_without_an_agent_are_meant() -> None:
    assert parse_places({"PDCTL_OUTSIDE": " 12, 12,13"}).outside == OutsideSetting("pids", (12, 13))
    assert parse_places({"PDCTL_OUTSIDE": "ALL"}).outside.means(7)
    assert not parse_places({"PDCTL_OUTSIDE": "no"}).outside.means(7)
    assert not parse_places({"PDCTL_CONTAINERS": "off"}).containers
