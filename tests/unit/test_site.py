"""What is published: pages with their links in one folder, a navigation that forgets none, a workflow that trusts no tag."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from packaging.version import Version

import pdctl
from tools.build_site import llms, navigation, relinked, staged
from tools.pages import ROOT, pages
from tools.release import needed

INDEX = ROOT / "docs" / "README.md"


def test_links_lead_to_where_pages_are_in_the_sites_folder(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "sub" / "a.md"
    (tmp_path / "deploy").mkdir()
    page.parent.mkdir(parents=True)
    page.write_text(
        "[up](../../README.md#x) [`code`](../b.md) [files](../../deploy) [source](../../pdctl/cli.py) [far](https://a.b)\n"
        "`[kept](../b.md)`\n```console exit=1\n[kept](../b.md)\n```\n"
    )
    assert relinked(page, tmp_path) == (
        "[up](../index.md#x) [`code`](../b.md) [files](../deploy/index.md) source [far](https://a.b)\n"
        "`[kept](../b.md)`\n```console\n[kept](../b.md)\n```\n"
    )


def test_each_page_is_in_the_navigation_once_and_none_is_left_over() -> None:
    text = json.dumps(navigation(INDEX))
    listed = re.findall(r'"([\w./-]+\.md)"', text)
    assert len(listed) == len(set(listed))
    assert {place for page in pages() if (place := staged(page))} <= set(listed)


def test_llms_txt_leads_to_markdown_beside_the_pages() -> None:
    text = llms(INDEX)
    assert text.startswith("# pdctl\n\n> ")
    places = {place for page in pages() if (place := staged(page))}
    leads = set(re.findall(r"\]\(([^)]+)\)", text)) - {"adr/index.md"}
    assert leads <= places, leads - places


def test_a_release_is_published_by_actions_that_are_pinned_with_rights_that_a_job_names() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    assert all(len(job["permissions"]) == 1 for job in workflow["jobs"].values())
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", used) for used in re.findall(r"uses: (.*)", text))
    assert "secrets." not in text


def test_this_version_has_notes() -> None:
    assert Version(pdctl.__version__)
    assert (ROOT / "docs" / "releases" / f"{pdctl.__version__}.md").exists()


def test_an_sbom_has_what_is_needed_without_an_extra() -> None:
    given = ["A.b>=1", "torch>=2; extra == 'lab'", "tomli; python_version < '3.2'", "numpy; python_version > '3.2'"]
    assert list(needed(given)) == ["a-b", "numpy"]
