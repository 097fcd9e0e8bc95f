// The script of every page: what listens to the whole document, and which class on a page is which view.
import { DeviceBars } from "./devices/bars.ts";
import { Traffic } from "./devices/traffic.ts";
import { makeEditPage } from "./edit/page.ts";
import { Mask } from "./mask/mask.ts";
import { MovedMask } from "./mask/moved.ts";
import { SequenceTable } from "./mask/sequence_table.ts";
import { loadWhenOpen, TileTable } from "./mask/tile_table.ts";
import { drawn, mountViews, plain } from "./mount.ts";
import { followChanges } from "./page/changed.ts";
import { Choice, Shown } from "./page/choice.ts";
import { GainTable, loadGains } from "./page/gain.ts";
import { Inspector } from "./page/inspector.ts";
import { followKeyboardMap } from "./page/keyboard.ts";
import { followLinks, openPage } from "./page/navigation.ts";
import { followFiles } from "./page/open.ts";
import { followPickers } from "./page/pickers.ts";
import { followPlanning } from "./page/planning.ts";
import { followSearch } from "./page/search.ts";
import { DeviceTable, followSelections } from "./page/selection.ts";
import { Steps } from "./page/steps.ts";
import { state } from "./state.ts";
import { AreaSums } from "./timeline/area.ts";
import { EventTable } from "./timeline/event_table.ts";
import { Filters } from "./timeline/filters.ts";
import { Notes } from "./timeline/notes.ts";
import { loadWhenSeen, Memory } from "./timeline/memory.ts";
import { loadTimelines, Timeline } from "./timeline/timeline.ts";
import type { TimelinePayload } from "./timeline/events.ts";

/** The timeline with what its page has beside it. */
class PageTimeline extends Timeline {
  constructor(host: HTMLElement, payloads: readonly TimelinePayload[], label: string) {
    super(host, payloads, label, [AreaSums, EventTable, Filters, Notes]);
  }
}

for (const listen of [followSelections, followLinks, followKeyboardMap, followChanges, followSearch, followFiles, followPickers, followPlanning]) listen();

// For tests and consoles: what a page shows, and another page.
Object.assign(window, { dcp: { state, navigation: { open: openPage } } });

mountViews({
  "dcp-timeline": drawn(PageTimeline, loadTimelines),
  "dcp-memory": drawn(Memory, loadWhenSeen),
  "dcp-mask": drawn(Mask),
  "dcp-mask-moves": drawn(MovedMask),
  "dcp-balance-bars": drawn(DeviceBars),
  "dcp-traffic-cells": drawn(Traffic),
  "dcp-tile-table": drawn(TileTable, loadWhenOpen),
  "dcp-sequence-table": drawn(SequenceTable, loadWhenOpen),
  "dcp-gain": drawn(GainTable, loadGains),
  "dcp-inspector": plain(Inspector),
  "dcp-device-table": plain(DeviceTable),
  "dcp-choice": plain(Choice),
  "dcp-shown": plain(Shown),
  "dcp-steps": plain(Steps),
  "dcp-edit": makeEditPage,
});
