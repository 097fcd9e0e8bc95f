import numpy as np
import pytest

from dcp_dashboard.library.summary import device_totals, imbalance, summarise, wait_share
from dcp_dashboard.pages.charts import GRAPH_CONFIG, device_axis
from dcp_planner import measure


@pytest.fixture(scope="module")
def totals(small_plan):
    return device_totals(small_plan, measure(small_plan))


def test_totals_are_sums_over_the_plans_tables(small_plan, totals):
    tiles, transfers, blocks = small_plan.tiles, small_plan.transfers, small_plan.blocks
    for device in range(4):
        mine = [i for i in range(len(tiles)) if tiles.device[i] == device]
        assert totals.tiles[device] == len(mine)
        assert totals.pairs[device] == sum(int(tiles.pairs[i]) for i in mine)
        owned = [i for i in range(len(blocks)) if blocks.owner[i] == device]
        assert totals.tokens[device] == sum(int(blocks.end[i] - blocks.start[i]) for i in owned)
        for other in range(4):
            moved = [
                int(transfers.size_bytes[i])
                for i in range(len(transfers))
                if (transfers.source[i], transfers.target[i]) == (device, other)
            ]
            assert totals.traffic_bytes[device, other] == sum(moved)
    assert totals.sent_bytes.tolist() == totals.traffic_bytes.sum(1).tolist()
    assert totals.received_bytes.tolist() == totals.traffic_bytes.sum(0).tolist()


def test_summary_says_what_the_plan_says(small_plan, small_trace):
    summary = summarise(small_plan, measure(small_plan), {"simulated": small_trace})
    assert (summary.mask, summary.origin) == ("causal", "by hand")
    assert summary.total_bytes == small_plan.transfers.size_bytes.sum()
    nodes = small_plan.transfers.source // 2 != small_plan.transfers.target // 2
    crossing = small_plan.transfers.size_bytes[nodes].sum()
    assert summary.inter_node_share == pytest.approx(crossing / summary.total_bytes)


def test_wait_share_is_waiting_time_over_all_time(small_trace):
    waits = small_trace.lane == 3
    waited = (small_trace.end_ns[waits] - small_trace.start_ns[waits]).sum()
    length = small_trace.end_ns.max() - small_trace.start_ns.min()
    assert wait_share(small_trace, 4) == pytest.approx(waited / (4 * length))


def test_nothing_moved_or_computed_is_level():
    assert imbalance(np.zeros(3, np.int64)) == 1.0


def test_charts_talk_to_no_cloud():
    assert GRAPH_CONFIG["displayModeBar"] is False  # its buttons could send a chart
    assert GRAPH_CONFIG["plotlyServerURL"] == ""


@pytest.mark.parametrize("devices", [1, 2, 16, 17, 64, 1000])
def test_device_axes_tick_at_whole_devices(devices):
    axis = device_axis(devices)
    assert axis["dtick"] == int(axis["dtick"])
    assert devices / axis["dtick"] <= 17
