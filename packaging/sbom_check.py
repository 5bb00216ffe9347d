"""Checks that an SBOM is valid CycloneDX and names the parts of the binary.

The file is the argument; standard input has a crate a line, as `cargo tree --format '{p}'` prints them.
"""

import json
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
sbom = json.loads(text)
invalid = JsonStrictValidator(SchemaVersion.from_version(sbom["specVersion"])).validate_str(text)
if invalid is not None:
    sys.exit(f"{sys.argv[1]}: {invalid}")

components = [sbom["metadata"]["component"], *sbom.get("components", [])]
named = {(one["name"], one["version"]) for one in components}
built = {(name, version.removeprefix("v")) for name, version, *_ in map(str.split, filter(str.strip, sys.stdin))}
missing, beyond = sorted(built - named), sorted(named - built)
if not built or missing:
    sys.exit(f"{sys.argv[1]}: missing {missing}")
# Features that only tests turn on count for it as well: what it names beyond is in the lock file, and not in the binary.
print(f"{sys.argv[1]}: CycloneDX {sbom['specVersion']}, {len(built)} crates, and {len(beyond)} that are not built in: {beyond}")
