// The state of this page, one for all views.
import { State } from "./state.ts";

export const state = new State();
