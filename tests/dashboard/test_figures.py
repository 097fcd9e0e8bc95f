import json

import numpy as np
import pytest

from dcp_dashboard.figures import GRAPH_CONFIG, balance_figure, traffic_figure
from dcp_dashboard.summary import device_totals, imbalance, summarise, wait_share
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
    assert (summary.num_sequences, summary.num_devices, summary.num_nodes) == (3, 4, 2)
    assert summary.num_divisions == small_plan.tiles.division.max() + 1
    assert summary.total_bytes == small_plan.transfers.size_bytes.sum()
    nodes = small_plan.transfers.source // 2 != small_plan.transfers.target // 2
    crossing = small_plan.transfers.size_bytes[nodes].sum()
    assert summary.inter_node_share == pytest.approx(crossing / summary.total_bytes)


def test_wait_share_is_waiting_time_over_all_time(small_trace):
    waits = small_trace.lane == 3
    waited = (small_trace.end_ns[waits] - small_trace.start_ns[waits]).sum()
    length = small_trace.end_ns.max() - small_trace.start_ns.min()
    assert wait_share(small_trace, 4) == pytest.approx(waited / (4 * length))


def test_bars_are_the_totals(totals):
    figure = balance_figure(totals, 2)
    assert [bar.y.tolist() for bar in figure.data] == [
        totals.pairs.tolist(),
        totals.tokens.tolist(),
        totals.sent_bytes.tolist(),
        totals.received_bytes.tolist(),
    ]


def test_every_row_of_the_balance_says_its_max_over_mean(totals):
    texts = [note.text for note in balance_figure(totals, 2).layout.annotations]
    for values in (totals.pairs, totals.tokens, totals.sent_bytes, totals.received_bytes):
        claim = f"max/mean <b>{values.max() / values.mean():.2f}</b>"
        assert any(text.startswith(claim) for text in texts)
    assert imbalance(np.zeros(3, np.int64)) == 1.0


def test_cells_of_the_traffic_matrix_are_empty_where_nothing_moves(totals):
    heat = traffic_figure(totals, 2).data[0]
    shown = np.where(np.isnan(heat.z), 0, heat.z)
    assert np.isnan(heat.z).any()
    assert shown.tolist() == totals.traffic_bytes.tolist()


def test_figures_carry_no_address_and_no_theme(totals):
    for figure in (balance_figure(totals, 2), traffic_figure(totals, 2)):
        text = json.dumps(figure.to_plotly_json(), default=str)
        assert "http" not in text
        assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"
    assert GRAPH_CONFIG["showSendToCloud"] is False
    assert GRAPH_CONFIG["plotlyServerURL"] == ""


@pytest.mark.parametrize("devices", [1, 2, 16, 17, 64, 1000])
def test_device_axes_tick_at_whole_devices(devices, totals):
    one, square = np.ones(devices, np.int64), np.ones((devices, devices), np.int64)
    wide = type(totals)(*[one] * 5, square, one)
    axis = traffic_figure(wide, 8).layout.xaxis
    assert axis.dtick == int(axis.dtick)
    assert devices / axis.dtick <= 17
