"""The probe ``config``: ``pdctl dump config``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pdctl.probes.base import NoOptions, Probe
from pdctl.protocol.documents import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.config.model import ConfigDocument, RankSettings
    from pdctl.probes.view import View


class Config(Probe["NoOptions", "list[RankSettings]", "ConfigDocument"]):
    """Compare the settings of both sides, and name the conflicts.

    The table has the settings that differ. -o wide has all settings.
    """

    name = "config"
    about = "both sides agree on what they must agree on"
    cost = "two questions to each rank"
    examples = ("pdctl dump config", "pdctl dump config -o wide")
    bundled = "config"
    selects = True
    options = NoOptions

    def document(self) -> type[ConfigDocument]:
        """Return its type."""
        from pdctl.probes.config.model import ConfigDocument

        return ConfigDocument

    def collect(self, view: View, options: NoOptions) -> list[RankSettings]:
        """Return the settings of every rank."""
        from pdctl.probes.config.collect import collect

        return collect(view)

    def judge(self, evidence: list[RankSettings], options: NoOptions) -> ConfigDocument:
        """Return which of them go together."""
        from pdctl.probes.config.judge import judge

        return judge(evidence)

    def render(self, document: ConfigDocument, *, wide: bool) -> Iterable[RenderableType]:
        """Yield the settings that differ."""
        from pdctl.probes.config.render import render

        return render(document, wide=wide)

    def rows(self, document: ConfigDocument) -> Rows:
        """Return the settings."""
        from pdctl.probes.config.model import Setting

        return Rows(Setting, document.settings)

    def summary(self, document: ConfigDocument) -> str:
        """Return how many servers agree, of those that answered."""
        heard = sum(len(server.silent) < server.ranks for server in document.servers)
        if heard < 2:
            return "1 server, nothing to compare" if heard and not document.problems else ""
        return f"{heard} servers agree on what they must agree on"


PROBE = Config()
