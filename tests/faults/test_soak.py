"""The soak run finds growth and wrong batches, and a short one finds none."""

import json
import subprocess
import sys

import pytest
import soak


def test_growth_beyond_a_bound_and_wrong_batches_are_defects(monkeypatch):
    monkeypatch.setattr(soak, "undisturbed", lambda count: ["a", "b", "c"][:count])
    samples = [
        (60.0 * minute, {"temporary_files": 3.0, "rank 0 memory_mib": 100 + growth * minute})
        for minute in range(20)
        for growth in ((9.0,) if minute % 5 else (0.0,))  # now and then all is collected
    ]
    rank = {"digests": ["a", "x", "c"], "kills": 1, "resumes": 1, "lost": 1}
    report = soak.judge(1, [rank], samples, refused=0)
    assert report["wrong batches"] == 1
    assert list(report["above"]) == ["rank 0 memory_mib"]
    assert report["defects"] == 2


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(1800)
def test_a_short_run_loses_no_batch_although_planners_die(tmp_path):
    out = tmp_path / "soak.json"
    command = [sys.executable, soak.__file__, "--minutes", "0.3", "--json", str(out)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=1500)
    report = json.loads(out.read_text())
    assert report["planners killed"] > 0
    assert report["resumes"] > 0
    assert (report["wrong batches"], report["refused requests"]) == (0, 0)
