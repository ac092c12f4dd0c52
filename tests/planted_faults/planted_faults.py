# The list of planted faults (faults.toml): reading it, and planting one in a tree.
import pathlib
import re
import tomllib

KINDS = ("lease never ends", "deadline ignored", "page not freed", "merge order",
         "epoch not checked", "leaf's border", "lost wake", "own stall counted", "retry for ever",
         "metric goes back", "role not checked", "checksum skipped", "other")


def read_faults(path=pathlib.Path(__file__).with_name("faults.toml")):
    return tomllib.loads(path.read_text(encoding="utf-8"))["fault"]


def place_of(fault, root):
    """(path, text, text with the fault) of the first form that applies; None where none does."""
    for form in (fault, fault.get("or")):
        path = form and pathlib.Path(root, form["file"])
        if not path or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if text.count(form["text"]) == 1 and form["replacement"] != form["text"]:
            return path, text, text.replace(form["text"], form["replacement"])
    return None


def problems_of(faults, root):
    """What is wrong with the list, a line each."""
    problems = []
    names = set()
    for fault in faults:
        name = fault["name"]
        if name in names:
            problems.append(f"{name}: named twice")
        names.add(name)
        if not fault["test"]:
            problems.append(f"{name}: no test that finds it")
        if fault["kind"] not in KINDS:
            problems.append(f"{name}: no kind {fault['kind']}")
        if not re.fullmatch("([0-9a-f]{7})?", fault["reverses"]):
            problems.append(f"{name}: {fault['reverses']} is no commit of 7 digits")
        if place_of(fault, root) is None:
            problems.append(f"{name}: its text has to occur once in {fault['file']}, and to change")
    return problems
