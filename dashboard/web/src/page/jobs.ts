// Work of the planner that takes a while: started, looked at until it is done.
import { loadJson, post } from "../api.ts";

const POLL_MS = 200;

export interface Job<Figures = unknown> {
  readonly job: string;
  readonly state: "waiting" | "running" | "done" | "cancelled" | "failed";
  readonly stage: string;
  readonly seconds: number;
  readonly message?: string;
  readonly key: string;
  readonly figures: Figures;
}

export const isUnderWay = (job: Job): boolean => job.state === "waiting" || job.state === "running";

/** Runs a job and gives it at its end, also a cancelled one; tells every look at it; `isGone()` ends the looking. */
export async function runJob<F>(task: string, request: object, tell: (job: Job<F>) => void, isGone = () => false): Promise<Job<F>> {
  let job = await post<Job<F>>(`/api/edit/${task}`, request);
  while (isUnderWay(job) && !isGone()) {
    tell(job);
    await new Promise((done) => setTimeout(done, POLL_MS));
    job = await loadJson<Job<F>>(`/api/edit/plan/${job.job}`);
  }
  return job;
}

/** The same for work that nobody can cancel: anything but its end is an error. */
export async function finishJob<F>(task: string, request: object, tell: (text: string) => void): Promise<Job<F>> {
  const job = await runJob<F>(task, request, (now) => tell(stageOf(now)));
  if (job.state !== "done") throw new Error(job.message ?? job.state);
  return job;
}

export const stageOf = ({ stage, seconds }: Job): string => `${stage} · ${seconds.toFixed(1)} s`;
