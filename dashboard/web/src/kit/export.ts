// A canvas view as a file: what is on the screen, in its theme. PNG is the two layers on the ground of the page; in an
// SVG the lines and texts above the pixels are drawn anew, so that they stay sharp and can be edited.
import { themeColour } from "./colours.ts";
import { button, make } from "./dom.ts";
import { contextOf, type Layers } from "./layers.ts";

const NAMESPACE = "http://www.w3.org/2000/svg";

/** A view that can be saved: its layers, and how it draws its lines and texts with a given pen. */
export interface Drawn { readonly layers: Layers; drawMarks(): void }

/** The view as a file that stands alone: pixels as an image, lines and texts as elements. */
export function svgOf(view: Drawn): string {
  const { width, height, area, pixels } = view.layers;
  const pen = view.layers.record(() => view.drawMarks());
  const image = `<image x="${area.left}" y="${area.top}" width="${area.width}" height="${area.height}" preserveAspectRatio="none" `
    + `style="image-rendering: pixelated" href=${JSON.stringify(pixels.toDataURL("image/png"))}/>`;
  return `<svg xmlns="${NAMESPACE}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`
    + `<rect width="100%" height="100%" fill="${themeColour("--panel")}"/>${image}${pen.parts.join("")}</svg>\n`;
}

/** Both layers on the ground of the page, as many pixels as the screen shows. */
export function pngOf({ pixels, marks, area, ratio }: Layers): Promise<Blob | null> {
  const sheet = make("canvas", { width: marks.width, height: marks.height });
  const pen = contextOf(sheet);
  pen.fillStyle = themeColour("--panel");
  pen.fillRect(0, 0, sheet.width, sheet.height);
  pen.drawImage(pixels, Math.round(area.left * ratio), Math.round(area.top * ratio));
  pen.drawImage(marks, 0, 0);
  return new Promise((done) => { sheet.toBlob(done, "image/png"); });
}

/** Gives the reader a file. */
export function save(content: Blob, name: string): void {
  const url = URL.createObjectURL(content);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Two buttons that save what a view shows. */
export function saveButtons(name: string, view: Drawn): HTMLElement[] {
  const png = async (): Promise<void> => {
    const content = await pngOf(view.layers);
    if (content) save(content, `${name}.png`);
  };
  const svg = (): void => save(new Blob([svgOf(view)], { type: "image/svg+xml" }), `${name}.svg`);
  return [
    button("PNG", "dcp-toggle", () => { void png(); }, { title: `Save the ${name} as it is shown, as pixels` }),
    button("SVG", "dcp-toggle", svg, { title: `Save the ${name} as it is shown, with sharp lines and texts` }),
  ];
}

/** The buttons below a view that has no row of tools. */
export function saveRow(name: string, view: Drawn): HTMLElement {
  return make("div", { className: "dcp-save" }, ...saveButtons(name, view));
}
