"""Reports of other servers' tests are read for what they say."""

from __future__ import annotations

from pathlib import Path

from benchmarks.serving.clients.suites import read

REPORT = """<testsuites><testsuite>
<testcase classname="unit.test_a" name="good"/>
<testcase classname="unit.test_a" name="left"><skipped message="slow"/></testcase>
<testcase classname="unit.test_a" name="route"><failure message="assert 404 == 200"/>
<system-out>there is no /slots: see /openapi.json</system-out></testcase>
<testcase classname="unit.test_b" name="words"><failure message="x">E   assert match_regex('L', 'a')
</failure></testcase>
<testcase classname="unit.test_b" name="ours"><failure message="assert 500 == 200"/></testcase>
</testsuite></testsuites>"""


def test_failures_have_reasons(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    cases = read(tmp_path / "report.xml")
    assert [(case.file, case.test, case.state) for case in cases] == [
        ("test_a", "good", "passed"),
        ("test_a", "left", "skipped"),
        ("test_a", "route", "no route /slots"),
        ("test_b", "words", "words or counts of its model"),
        ("test_b", "ours", "other"),
    ]
    assert "500" in cases[-1].said
