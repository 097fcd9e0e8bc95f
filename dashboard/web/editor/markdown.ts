// The little Markdown that the language's hover uses, as elements: fenced code, `code`, paragraphs.
export function markdown(text: string): HTMLElement {
  const box = document.createElement("div");
  box.className = "dcp-doc";
  for (const part of text.split(/(```[a-z]*\n[\s\S]*?\n```)/)) {
    const fenced = part.match(/^```[a-z]*\n([\s\S]*?)\n```$/);
    if (fenced) box.append(element("pre", fenced[1]));
    else for (const paragraph of part.split(/\n{2,}/)) if (paragraph.trim()) box.append(inline(paragraph.trim()));
  }
  return box;
}

function element(name: string, text: string): HTMLElement {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function inline(text: string): HTMLElement {
  const paragraph = document.createElement("p");
  for (const part of text.split(/(`[^`]*`)/)) {
    paragraph.append(/^`[^`]*`$/.test(part) ? element("code", part.slice(1, -1)) : document.createTextNode(part));
  }
  return paragraph;
}
