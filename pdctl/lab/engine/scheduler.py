"""One rank, whole (SGLang: ``managers/scheduler.py``)."""

from __future__ import annotations

from pdctl.lab.config import LabConfig
from pdctl.lab.engine.conn import KVArgs
from pdctl.lab.engine.decode import DecodeTransferQueue
from pdctl.lab.engine.groups import Groups
from pdctl.lab.engine.pipeline import SchedulerPPMixin
from pdctl.lab.engine.prealloc import DecodePreallocQueue
from pdctl.lab.engine.prefill import PrefillBootstrapQueue
from pdctl.lab.engine.receiver import DecodeKVManager
from pdctl.lab.engine.sender import PrefillKVManager
from pdctl.lab.engine.transport import Transport


class Scheduler(SchedulerPPMixin):
    """A rank with the queues of its role. server, start: name of its server, and of this start of it."""

    def __init__(
        self,
        config: LabConfig,
        server: str,
        dp_rank: int,
        groups: Groups,
        transport: Transport,
        bootstrap_addr: str,
        request_endpoint: str,
        start: str,
    ) -> None:
        role = "decode" if server == "decode" else "prefill"
        super().__init__(config, role, dp_rank, groups, transport, request_endpoint)
        self.server = server
        self.start = start
        args = KVArgs(
            groups.tp_rank, groups.tp_size, groups.pp_rank, groups.pp_size, dp_rank, config.shape(role).dp, self.pool,
            self.disagg_metadata_buffers,
        )  # fmt: skip
        if role == "prefill":
            self.prefill_manager = PrefillKVManager(args, config, bootstrap_addr, transport)
            self.disagg_prefill_bootstrap_queue = PrefillBootstrapQueue(self, self.prefill_manager)
            self.disagg_prefill_inflight_queue = []
        else:
            self.decode_manager = DecodeKVManager(args, config, bootstrap_addr, transport)
            self.disagg_decode_prealloc_queue = DecodePreallocQueue(self, self.decode_manager, groups.attn_tp_cpu)
            self.disagg_decode_transfer_queue = DecodeTransferQueue(
                self, groups.attn_tp_cpu, self.req_to_metadata_buffer_idx_allocator, self.disagg_metadata_buffers
            )

    def run(self) -> None:
        """Serve for ever."""
        pipeline = self.groups.pp_size > 1
        if self.role == "prefill":
            loop = self.event_loop_pp_disagg_prefill if pipeline else self.event_loop_normal_disagg_prefill
        else:
            loop = self.event_loop_pp_disagg_decode if pipeline else self.event_loop_normal_disagg_decode
        loop()
