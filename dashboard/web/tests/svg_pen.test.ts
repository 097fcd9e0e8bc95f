import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { escape, SvgPen } from "../src/kit/svg_pen.ts";

const RULER = { font: "11px sans-serif", measureText: (text: string) => ({ width: text.length }) } as unknown as CanvasRenderingContext2D;

suite("a pen of SVG", () => {
  test("draws what a canvas would: boxes of any sign, paths, clips that end with what they hold", () => {
    const pen = new SvgPen(RULER);
    pen.fillStyle = "#123456";
    pen.fillRect(10, 20, -4, 5);
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, 8, 9);
    pen.clip();
    pen.globalAlpha = 0.5;
    pen.beginPath();
    pen.moveTo(1, 2);
    pen.lineTo(3, 4.123);
    pen.stroke();
    pen.restore();
    pen.fillText("a < b & \"c\"", 1, 2);
    assert.deepEqual(pen.parts, [
      '<rect x="6" y="20" width="4" height="5" fill="#123456"/>',
      '<clipPath id="clip0"><path d="M0 0h8v9h-8Z"/></clipPath><g clip-path="url(#clip0)">',
      '<path d="M1 2L3 4.12" fill="none" stroke="#000000" stroke-width="1" stroke-linejoin="miter" opacity="0.5"/>',
      "</g>",
      '<text x="1" y="2" text-anchor="start" dominant-baseline="auto" style="font: 11px sans-serif" fill="#123456">a &lt; b &amp; &quot;c&quot;</text>',
    ]);
    assert.equal(pen.measureText("four").width, 4);
  });

  test("writes no character that XML forbids", () => assert.equal(escape("a\u0000\u000b<\u00e9"), "a&lt;\u00e9"));
});
