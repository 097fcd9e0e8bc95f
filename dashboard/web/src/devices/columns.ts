// The payload "dcp.devices/1" of dcp_dashboard/api/devices.py: quantities per device, and who sends whom how much.
import type { Payload } from "../api.ts";

export interface Quantity {
  readonly id: string;
  readonly label: string;
  readonly meaning: string;
  readonly unit: "count" | "bytes" | "seconds";
  readonly kind: string;
  readonly ratio: number;
  readonly mean: number;
}

export interface DevicesHeader {
  readonly num_devices: number;
  readonly node_starts: readonly number[];
  readonly rows: readonly Quantity[];
}

export type DevicesPayload = Payload<DevicesHeader>;
