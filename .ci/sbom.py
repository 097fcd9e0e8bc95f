"""Write what is installed for dcp-dsl as a CycloneDX 1.6 document: versions, licences, hashes.

python .ci/sbom.py > sbom.json
"""

import json
import re
from importlib.metadata import Distribution, distribution, version
from pathlib import Path

LOCK = Path(__file__).with_name("locks") / "dev.txt"


def hashes() -> dict[str, list[str]]:
    """Return the SHA-256 of the files of each locked package, by name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in LOCK.read_text().splitlines():
        if start := re.match(r"([A-Za-z0-9._-]+)==", line):
            name = start[1].lower()
        found.setdefault(name, []).extend(re.findall(r"sha256:([0-9a-f]{64})", line))
    return found


def installed(name: str = "dcp-dsl") -> dict[str, Distribution]:
    """Return a package and all that it needs and that is installed, extras too."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        key = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            there = found.get(key) or distribution(key)
        except ModuleNotFoundError:
            continue
        if key not in found:
            found[key] = there
            names = (re.match(r"[A-Za-z0-9._-]+", need) for need in there.requires or ())
            waiting += [match[0] for match in names if match]
    return found


def component(name: str, known: Distribution, locked: dict[str, list[str]]) -> dict:
    """Describe a package."""
    text = known.metadata.get("License-Expression") or known.metadata.get("License") or "unknown"
    made = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{known.version}",
        "name": name,
        "version": known.version,
        "purl": f"pkg:pypi/{name}@{known.version}",
        "licenses": [{"license": {"name": text.strip().splitlines()[0][:100]}}],
    }
    content = [{"alg": "SHA-256", "content": each} for each in locked.get(name, ())]
    files = {"type": "distribution", "url": f"https://pypi.org/project/{name}/{known.version}/"}
    return {**made, "externalReferences": [{**files, "hashes": content}]} if content else made


def main() -> None:
    """Print the document."""
    found, locked = installed(), hashes()
    found.pop("dcp-dsl", None)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "library", "name": "dcp-dsl", "version": version("dcp-dsl")}
        },
        "components": [component(name, found[name], locked) for name in sorted(found)],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
