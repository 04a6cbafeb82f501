"""Files that a build makes: the commit, manual pages, shell completions and the bill of materials.

The same sources give the same bytes: nothing here depends on the time, the machine or the folder of the build.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

COMPLETIONS = {
    "sbpair.bash": "share/bash-completion/completions/sbpair",
    "_sbpair": "share/zsh/site-functions/_sbpair",
    "sbpair.fish": "share/fish/vendor_completions.d/sbpair.fish",
}
SBOM = "sbpair.cdx.json"


class PackageHook(BuildHookInterface):
    """Adds the made files to an sdist or a wheel; an editable installation has none of them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files in a temporary folder, and name them in `build_data`."""
        if version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root))
        sys.dont_write_bytecode = True
        from sbpair.model.installation import BUILD_FILE, commit_of

        self.temporary = TemporaryDirectory()
        folder, noted = Path(self.temporary.name), root / "sbpair" / BUILD_FILE
        commit = commit_of(root)
        if commit is not None:
            noted = folder / BUILD_FILE
            noted.write_text(json.dumps({"commit": commit.id, "date": commit.date}) + "\n")
        if noted.exists():
            build_data["force_include"][str(noted)] = f"sbpair/{BUILD_FILE}"
        if self.target_name == "wheel":
            date = json.loads(noted.read_text())["date"] if noted.exists() else ""
            build_data["force_include"][str(root / "completions")] = "sbpair/cli/completions"
            shared = {str(root / "completions" / name): place for name, place in COMPLETIONS.items()}
            build_data["shared_data"].update({**shared, **manual_pages(folder, date)})
            (folder / SBOM).write_text(json.dumps(bill_of_materials(self.metadata), indent=2) + "\n")
            build_data["sbom_files"].append(str(folder / SBOM))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the temporary folder."""
        if version != "editable":
            self.temporary.cleanup()


def manual_pages(folder: Path, date: str) -> dict[str, str]:
    """Write the page of each command; return their places in an installation."""
    from sbpair.cli.man_page import FOLDER, write_pages

    return {str(page): f"share/man/{FOLDER}/{page.name}" for page in write_pages(folder, date)}


def bill_of_materials(metadata: Any) -> dict[str, Any]:
    """Return the declared dependencies as CycloneDX. Their versions are chosen when the package is installed."""
    project, version = metadata.core, metadata.version
    declared = {need: "optional" for needs in project.optional_dependencies.values() for need in needs}
    declared |= dict.fromkeys(project.dependencies, "required")
    components: dict[str, dict[str, Any]] = {}
    for need, scope in sorted(declared.items()):
        name = canonicalize_name(Requirement(need).name)
        purl = f"pkg:pypi/{name}"
        component = {"type": "library", "bom-ref": purl, "name": name, "scope": scope, "purl": purl, "properties": []}
        components.setdefault(purl, component)["properties"].append({"name": "sbpair:requirement", "value": need})
    itself = f"pkg:pypi/{project.name}@{version}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "pre-build"}],
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": project.name,
                "version": version,
                "description": project.description,
                "purl": itself,
                "licenses": [{"license": {"id": project.license_expression}}],
            },
        },
        "components": list(components.values()),
        "dependencies": [{"ref": itself, "dependsOn": list(components)}],
        "compositions": [
            {"aggregate": "complete", "dependencies": [itself]},
            {"aggregate": "unknown", "dependencies": list(components)},
        ],
    }
