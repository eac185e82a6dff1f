# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The steps of a release, in their order: first what must hold, then what is made."""

from __future__ import annotations

from colibri_deploy.release import (
    binaries,
    deb,
    gates,
    notes,
    oci,
    python_packages,
    tarballs,
    trust,
)
from colibri_deploy.release.pipeline import Step

STEPS = (
    Step("version", "check", "meson.build, Python and the tag agree", gates.version),
    Step("pins", "check", "the tools are those of pyproject.toml", gates.pins),
    Step("changelog", "check", "CHANGELOG.md speaks of the version", gates.changelog),
    Step("clean", "check", "the checkout is the commit", gates.clean),
    Step("licences", "gate", "every file names its licence", gates.licences),
    Step("tests", "gate", "make test passes", gates.tests),
    Step("compile", "build", "compile for all architectures", binaries.compile_all),
    Step("isa", "gate", "no object holds an instruction beyond its level", gates.isa),
    Step("static", "gate", "the programs need nothing", gates.static),
    Step("size", "check", "the programs are within their budget", gates.size),
    Step("emulation", "gate", "each program computes the golden model", gates.emulation),
    Step("tarballs", "artifact", "pack the programs", tarballs.programs),
    Step("debuginfo", "artifact", "pack the debug information", tarballs.debuginfo),
    Step("source", "artifact", "pack the sources", tarballs.sources),
    Step("python", "artifact", "pack colibri-deploy", python_packages.packages),
    Step("deb", "artifact", "make Debian packages", deb.packages),
    Step("oci", "artifact", "make an OCI image", oci.image),
    Step("notes", "record", "write RELEASE-NOTES.md", notes.notes),
    Step("sbom", "record", "list what is in the release", trust.sbom),
    Step("record", "record", "write release.json", notes.record),
    Step("sums", "record", "write SHA256SUMS", trust.sums),
    Step("provenance", "record", "state how it was built", trust.provenance),
    Step("sign", "record", "sign checksums and provenance", trust.sign),
)
