// The tokens of the look: texts can be read on every surface, kinds of events and states can be told apart by people who
// see no red or no green, and no other style sheet brings sizes, distances or colours of its own. The formulas are those of WCAG 2 and of Viénot, Brettel and Mollon (1999).
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { suite, test } from "node:test";

type Colour = readonly number[]; // red, green, blue as light, 0 to 1

const read = (name: string): string => readFileSync(new URL(`../../dcp_dashboard/assets/${name}`, import.meta.url), "utf8");
const style = read("tokens.css");
const KINDS = ["attention", "reduction", "copy", "send", "receive", "wait"];
const WORDS = ["keyword", "string", "number", "variable", "name", "type"];

/** Colours of a block of custom properties by name, as light. */
function tokens(selector: string): Record<string, Colour> {
  const block = style.slice(style.indexOf(`${selector} {`)).split("}")[0];
  return Object.fromEntries([...block.matchAll(/--(\w+): #(\w{6});/g)].map(([, name, hex]) => [name, [0, 2, 4].map((at) => {
    const value = parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  })]));
}

const light = tokens(":root");
const themes = { light, dark: { ...light, ...tokens(':root[data-mantine-color-scheme="dark"]') } };

function contrast(one: Colour, other: Colour): number {
  const [dark, bright] = [one, other].map(([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b).sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
}

/** A colour as eyes that lack one kind of cones see it. */
const SEEN: Readonly<Record<string, (colour: Colour) => Colour>> = {
  "all cones": (colour) => colour,
  "no red cones": ([r, g, b]) => [0.1121 * r + 0.8853 * g - 0.0005 * b, 0.1127 * r + 0.8897 * g - 0.0001 * b, 0.0045 * r + 0.0001 * g + 1.0019 * b],
  "no green cones": ([r, g, b]) => [0.292 * r + 0.7054 * g - 0.0003 * b, 0.2934 * r + 0.7089 * g, -0.0209 * r + 0.0256 * g + 0.9995 * b],
};

/** Distance in CIE L*a*b*; 2 can just be seen beside each other. */
function distance(one: Colour, other: Colour): number {
  const root = (t: number) => (t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116);
  const lab = ([r, g, b]: Colour) => {
    const [x, y, z] = [0.4125 * r + 0.3576 * g + 0.1804 * b, 0.2127 * r + 0.7152 * g + 0.0722 * b, 0.0193 * r + 0.1192 * g + 0.9503 * b]
      .map((value, i) => root(value / [0.9505, 1, 1.089][i]));
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
  };
  const [a, b] = [lab(one), lab(other)];
  return Math.hypot(...a.map((value, i) => value - b[i]));
}

for (const [theme, colours] of Object.entries(themes)) {
  suite(`the ${theme} theme`, () => {
    for (const text of ["ink", "muted", "accent", "good", "bad"]) {
      test(`${text} can be read on every surface`, () => {
        for (const surface of ["page", "panel", "canvas"]) {
          const found = contrast(colours[text], colours[surface]);
          assert.ok(found >= 4.5, `${text} on ${surface}: ${found.toFixed(2)}`);
        }
      });
    }

    test("words of the language can be read in the editor", () => {
      for (const word of WORDS) assert.ok(contrast(colours[word], colours.panel) >= 4.5, `${word}: ${contrast(colours[word], colours.panel)}`);
    });

    test("a line that warns stands out from the panel", () => {
      for (const state of ["bad", "warn", "accent"]) assert.ok(contrast(colours[state], colours.panel) >= 3, state);
    });

    test("a kind of event stands out from the canvas", () => {
      for (const kind of KINDS) assert.ok(distance(colours[kind], colours.canvas) > 30, kind);
    });

    for (const [eyes, seen] of Object.entries(SEEN)) {
      test(`better and worse differ for eyes with ${eyes}`, () => {
        assert.ok(distance(seen(colours.good), seen(colours.bad)) > 10);
      });
    }
  });
}

for (const [eyes, seen] of Object.entries(SEEN)) {
  test(`kinds of events differ for eyes with ${eyes}`, () => {
    for (const [i, one] of KINDS.entries()) {
      for (const other of KINDS.slice(i + 1)) {
        const found = distance(seen(light[one]), seen(light[other]));
        assert.ok(found > 10, `${one} and ${other}: ${found.toFixed(1)}`);
      }
    }
  });
}

suite("the other style sheets", () => {
  const sheets = ["compare.css", "edit.css", "export.css", "style.css", "timeline.css"].map((name) => [name, read(name)] as const);
  const scale = new Set(/--spaces: (.+);/.exec(style)?.[1].split(" "));

  test("take sizes of text, corners and colours from the tokens", () => {
    for (const [name, sheet] of sheets) {
      assert.deepEqual(sheet.match(/font(?:-size)?: \d+px|border-radius: \d*[1-9]px|#[0-9a-f]{3,8}\b(?=[;, )])|rgba?\([^)]*\)/g) ?? [], [], name);
    }
  });

  test("keep to the scale of distances", () => {
    assert.equal(scale.size, 13);
    for (const [name, sheet] of sheets) {
      const used = [...sheet.matchAll(/(?:padding|margin|gap)(?:-[a-z]+)?: ([^;}]*)/g)].flatMap(([, value]) => value.match(/[\d.]+px/g) ?? []);
      assert.ok(used.length > 3 && used.every((length) => scale.has(length)), `${name}: ${used.filter((length) => !scale.has(length))}`);
    }
  });
});
