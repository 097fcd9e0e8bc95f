// As much of a browser as the modules under test touch when they are loaded: an address, a history, a window.
export const address = { pathname: "/plan/1", search: "", hash: "", protocol: "http:" };

export const history = {
  state: null,
  replaceState(_data: unknown, _title: string, url: string): void {
    const found = new URL(url, "http://127.0.0.1");
    Object.assign(address, { pathname: found.pathname, search: found.search, hash: found.hash });
  },
};

export const window = new EventTarget();

Object.assign(globalThis, { location: address, history, window });

/** Numbers in [0, 1), the same in every run. */
export function seeded(seed: number): () => number {
  let now = seed;
  return () => {
    now = (Math.imul(now, 1664525) + 1013904223) >>> 0;
    return now / 2 ** 32;
  };
}
