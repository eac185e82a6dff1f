# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What came of the work on boards: one structure for tables, JSON and JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal
from xml.etree import ElementTree

from colibri_deploy.errors import BoardsFailedError, ColibriDeployError, StoppedError

# XML 1.0 has no way to write these, and boards say what they like.
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Step:
    """One step of the work on a board."""

    name: str
    outcome: Literal["passed", "failed", "skipped", "stopped"]
    detail: str
    seconds: float
    figures: Mapping[str, float | None] = field(default_factory=dict)  # measured; None: unknown


@dataclass(frozen=True)
class BoardResult:
    """What came of the work on one board."""

    board: str
    target: str
    steps: tuple[Step, ...]  # at least one
    seconds: float
    summary: str = ""  # what a board that passed has to say
    error: ColibriDeployError | None = None  # what a failed board would end the program with
    reports: Mapping[str, object] = field(default_factory=dict)  # of the verbs, for JSON

    @property
    def outcome(self) -> Literal["passed", "failed", "stopped"]:
        """Failed if anything failed; stopped if it was not let finish."""
        outcomes = {step.outcome for step in self.steps}
        if "failed" in outcomes or self.error is not None:
            return "failed"
        return "stopped" if "stopped" in outcomes else "passed"

    @property
    def trouble(self) -> Step | None:
        """The first step that did not go well."""
        return next((step for step in self.steps if step.outcome in ("failed", "stopped")), None)

    def record(self) -> dict[str, object]:
        """The result, for JSON."""
        error: dict[str, object] | None = None
        if self.error is not None:
            error = {"message": self.error.message, "details": self.error.details}
            error["code"] = self.error.exit_code
        return {
            "board": self.board,
            "target": self.target,
            "outcome": self.outcome,
            "summary": self.summary,
            "seconds": round(self.seconds, 3),
            "steps": [asdict(step) for step in self.steps],
            "error": error,
            **self.reports,
        }


def verdict(results: Sequence[BoardResult], interrupted: bool) -> ColibriDeployError | None:
    """What the program ends with; None: every board passed.

    StoppedError after Ctrl-C; the error of a board that is the only one; otherwise
    BoardsFailedError. The latter two name boards and steps.
    """
    failed = [result for result in results if result.outcome == "failed"]
    stopped = ", ".join(result.board for result in results if result.outcome == "stopped")
    where = "; ".join(f"{result.board} at {_failing(result)}" for result in failed)
    if interrupted and stopped:
        return StoppedError(
            f"stopped; not finished: {stopped}", details=f"failed: {where}" if where else ""
        )
    if not failed:
        return None
    if len(results) == 1 and failed[0].error is not None:
        return failed[0].error
    reasons = [_reason(result) for result in failed]
    return BoardsFailedError(
        f"{len(failed)} of {len(results)} boards failed: {where}",
        details="\n".join([*reasons, *([f"not finished: {stopped}"] if stopped else [])]),
    )


def _failing(result: BoardResult) -> str:
    return ", ".join(step.name for step in result.steps if step.outcome == "failed")


def _reason(result: BoardResult) -> str:
    """Why a board failed, in lines of which the first one names it."""
    error = result.error
    if error is None:
        return ""
    named = result.board in error.message
    message = error.message if named else f"{result.board}: {error.message}"
    return "\n".join(filter(None, (message, error.details)))


def junit(verb: str, results: Sequence[BoardResult]) -> str:
    """JUnit XML: boards are suites, steps are cases; what was stopped is an error."""
    suites = ElementTree.Element("testsuites", _totals(f"colibri-deploy {verb}", results))
    for result in results:
        suite = ElementTree.SubElement(suites, "testsuite", _totals(result.board, [result]))
        properties = ElementTree.SubElement(suite, "properties")
        ElementTree.SubElement(properties, "property", {"name": "target", "value": result.target})
        for step in result.steps:
            names = {"classname": result.board, "name": step.name}
            case = ElementTree.SubElement(
                suite, "testcase", {**names, "time": f"{step.seconds:.3f}"}
            )
            text = _NOT_IN_XML.sub("\ufffd", step.detail)
            match step.outcome:
                case "passed":
                    ElementTree.SubElement(case, "system-out").text = text
                case "skipped":
                    ElementTree.SubElement(case, "skipped", {"message": text})
                case "failed":
                    failure = ElementTree.SubElement(case, "failure", {"message": text})
                    failure.text = _NOT_IN_XML.sub("\ufffd", _reason(result))
                case "stopped":
                    ElementTree.SubElement(case, "error", {"message": text})
            if step.figures:
                measured = ElementTree.SubElement(case, "properties")
                for name, value in step.figures.items():
                    if value is not None:
                        figure = {"name": name, "value": f"{value:.10g}"}
                        ElementTree.SubElement(measured, "property", figure)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _totals(name: str, results: Sequence[BoardResult]) -> dict[str, str]:
    steps = [step for result in results for step in result.steps]

    def count(outcome: str) -> str:
        return str(sum(step.outcome == outcome for step in steps))

    return {
        "name": _NOT_IN_XML.sub("\ufffd", name),
        "tests": str(len(steps)),
        "failures": count("failed"),
        "errors": count("stopped"),
        "skipped": count("skipped"),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }
