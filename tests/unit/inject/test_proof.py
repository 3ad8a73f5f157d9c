"""Where one request goes that shows whether a cluster answers after a fault; the request itself is tested on labs and pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.inject import proof
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.rank import FoundRank
from tests.support.identities import identity


def test_it_is_not_known_where_a_request_goes_that_names_no_servers(tmp_path: Path) -> None:
    ranks = [FoundRank(identity(), "live")]
    with pytest.raises(PdctlError) as caught:
        proof.place(ranks, None, {"PDCTL_RUN_DIR": str(tmp_path)})
    assert caught.value.code is Exit.PARTIAL
    assert "--prefill-url and --decode-url" in caught.value.next_step
