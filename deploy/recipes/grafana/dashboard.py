#!/usr/bin/env python3
# Prints the dashboard, as Grafana imports it. The questions that it answers stand below, each with
# its lines of panels: a title, what to know when reading it, a unit, and queries by their legend.
import json

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TIER = '{instance=~"$instance"}'  # the control planes and pools that the reader has chosen
POOL = '{instance=~"$instance",pool=~"$pool"}'


def rate(metric, of=POOL):
    return f"rate(tributary_{metric}{of}[$__rate_interval])"


def total(metric, by=""):
    """Over all pools, or for each value of a label."""
    return f"sum{f' by ({by}) ' if by else ''}(tributary_{metric}{POOL})"


def rates(metric, by, of=POOL):
    return f"sum by ({by}) ({rate(metric, of)})"


def counted(metric, of=POOL):
    return f"increase(tributary_{metric}{of}[5m])"


def quantiles(metric, *percents):
    return {f"p{percent}": f"histogram_quantile({percent / 100}, {rates(metric + '_bucket', 'le')})"
            for percent in percents}


def mean(metric, by):
    return f"{rates(metric + '_sum', by)} / {rates(metric + '_count', by)}"


def panel(kind, title, description, unit, queries, options, *, limits=None, color="thresholds",
          maximum=None, decimals=None, custom=None):
    """`limits`: from which value on a colour holds; the first is that of all below."""
    instant = {"instant": True, "range": False} if kind != "timeseries" else {}
    defaults = {"unit": unit, "min": 0}
    if maximum is not None:
        defaults["max"] = maximum
    if decimals is not None:
        defaults["decimals"] = decimals
    if limits:
        defaults["color"] = {"mode": color}
        defaults["thresholds"] = {"mode": "absolute", "steps": [
            {"color": name, "value": value} for name, value in limits.items()]}
    if custom:
        defaults["custom"] = custom
    return {"type": kind, "title": title, "description": description, "datasource": SOURCE,
            "targets": [{"refId": "ABC"[i], "datasource": SOURCE, "expr": query,
                         "legendFormat": legend, **instant}
                        for i, (legend, query) in enumerate(queries.items())],
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options}


LAST = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}


def number(*about, **more):
    return panel("stat", *about, {**LAST, "colorMode": "background", "graphMode": "none",
                                  "textMode": "auto"}, **more)


def bars(*about, **more):
    return panel("bargauge", *about, {**LAST, "orientation": "horizontal", "displayMode": "basic"},
                 **more)


def plot(*about, stacked=False, limits=None, **more):
    custom = {"lineWidth": 1, "fillOpacity": 30 if stacked else 8, "showPoints": "never",
              "stacking": {"mode": "normal" if stacked else "none"}}
    if limits:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    return panel("timeseries", *about,
                 {"legend": {"displayMode": "list", "placement": "bottom"},
                  "tooltip": {"mode": "multi", "sort": "desc"}},
                 limits=limits, color="palette-classic", custom=custom, **more)


WORKER = "{{pool}}/{{rank}}"
GOOD_FROM_1 = {"red": None, "green": 1}
BAD_FROM_1 = {"green": None, "red": 1}
ROW_SECONDS = (f"{rate('worker_attend_seconds_total')} / "
               f"({rate('worker_attended_rows_total')} > 0)")
POOL_ROWS = f"({rates('worker_attended_rows_total', 'instance, pool')} > 0)"
OF_POOL = "/ on (instance, pool) group_left ()"

# Each question with its lines: their height, and the panels that share their width.
QUESTIONS = {
    "Is the tier healthy?": [
        (4, [number("Control plane", "1 while Prometheus reaches it.", "bool_on_off",
                    {"{{instance}}": 'up{job="tributary",instance=~"$instance"}'},
                    limits=GOOD_FROM_1),
             number("Pools that serve", "Admissions go to these.", "short",
                    {"serving": 'sum(tributary_pools{state="serving",instance=~"$instance"})'},
                    limits=GOOD_FROM_1),
             number("Pools lost or draining", "Lost pools have to be started again.", "short",
                    {"{{state}}": 'sum by (state) (tributary_pools{state!="serving",'
                                  'instance=~"$instance"})'},
                    limits={"green": None, "orange": 1}),
             number("Workers silent", "A silent worker ends its pool within seconds.", "short",
                    {"silent": 'sum(tributary_workers{state="silent",instance=~"$instance"})'},
                    limits=BAD_FROM_1),
             number("Wrong results", "Results that differed from float64 by more than their bound. "
                    "Anything but 0 is an emergency.", "short",
                    {"failures": total("canary_failures_total")}, limits=BAD_FROM_1),
             number("Uptime", "Of the control plane.", "s",
                    {"{{instance}}": f"tributary_uptime_seconds{TIER}"})]),
        (7, [plot("Time since each worker was heard", "A pool that is silent for 1.5 s is lost.",
                  "s", {WORKER: f"tributary_heartbeat_age_seconds{POOL}"},
                  limits={"green": None, "red": 1.5}),
             plot("Pools lost, and registrations", "Counted over 5 minutes.", "short",
                  {"lost": counted("pools_lost_total", TIER),
                   "{{result}}": counted("pool_registrations_total", TIER)})])],
    "Is it full?": [
        (8, [bars("Pages given away", "Used and promised, of all pages of a pool. Above 90% "
                  "admissions are about to be refused.", "percentunit",
                  {"{{pool}}": f"sum by (pool) (tributary_pages_used{POOL} + "
                               f"tributary_pages_reserved{POOL}) / "
                               f"{total('pages_capacity', 'pool')}"},
                  maximum=1, limits={"green": None, "orange": 0.75, "red": 0.9}),
             plot("Pages", "Of all workers. Used pages are held by sequences; reserved ones are "
                  "promised to sequences that run. Idle ones, of blocks that nobody uses now, are "
                  "free too.", "short",
                  {"used": total("pages_used"), "reserved": total("pages_reserved"),
                   "free": f"sum(tributary_pages_capacity{POOL} - tributary_pages_used{POOL} - "
                           f"tributary_pages_reserved{POOL})"}, stacked=True),
             plot("Pages used by worker", "Placement keeps these together.", "percentunit",
                  {WORKER: f"tributary_pages_used{POOL} / tributary_pages_capacity{POOL}"},
                  maximum=1)]),
        (7, [plot("Admissions", "By what became of them; pool_full means that clients wait.",
                  "reqps", {"{{result}}": rates("admissions_total", "result", TIER)}),
             plot("Rows of prompts with named blocks", "A second. What was there is neither "
                  "computed nor pushed again.", "short",
                  {"{{pool}}": rates("prefix_cache_queries_total", "pool"),
                   "{{pool}}, there": rates("prefix_cache_hits_total", "pool")}),
             plot("Sequences", "filling: the prompt's rows are still coming.", "short",
                  {"{{state}}": total("sequences", "state")}, stacked=True),
             plot("Sequences that ended", "expired: their client was silent for the length of a "
                  "lease.", "reqps", {"all": f"sum({rate('sequences_freed_total')})",
                                      "expired": f"sum({rate('leases_expired_total')})"})])],
    "What is slow?": [
        (8, [plot("New tokens a second", "Committed.", "short",
                  {"{{pool}}": rates("tokens_total", "pool")}),
             plot("A step of a sequence", "First layer to commit, the client's own part included.",
                  "s", quantiles("step_duration_seconds", 50, 90, 99)),
             plot("A round", "One batch through one layer or more: what the tier itself takes.",
                  "s", quantiles("round_duration_seconds", 50, 90, 99))]),
        (7, [plot("Between two commits", "Of one sequence: a token's time, the client's own part "
                  "included.", "s", quantiles("commit_interval_seconds", 50, 90, 99)),
             plot("To the first commit", "From admission: the prompt's rows and the first step.",
                  "s", quantiles("first_commit_seconds", 50, 90, 99))]),
        (8, [plot("Where a round's time goes", "Mean of each phase, of the slowest worker: the "
                  "exchanges include waiting for it.", "s",
                  {"{{phase}}": mean("phase_duration_seconds", "phase")}, stacked=True),
             plot("Wait for a round", "An item's arrival to its round: long waits mean that rounds "
                  "are the bottleneck.", "s", quantiles("wait_duration_seconds", 50, 99)),
             plot("Sequences a round", "Small batches and long waits together: the clients are "
                  "slow, or in step.", "short", {"{{pool}}": mean("batch_size", "pool")})]),
        (7, [plot("Rows from prefill, and back", "Bytes a second.", "Bps",
                  {"{{pool}}": rates("ingested_bytes_total", "pool"),
                   "{{pool}}, pulled": rates("pulled_bytes_total", "pool")}),
             plot("A message with rows", "Header to checksum.", "s",
                  quantiles("ingest_duration_seconds", 50, 99)),
             plot("Exchange between workers", "Queries, new rows and partial results.", "Bps",
                  {"{{pool}}": rates("exchanged_bytes_total", "pool")})])],
    "Which worker straggles?": [
        (8, [plot("Time for a row, by worker", "The same on all workers, or one of them has a slow "
                  "device, a busy host, or a hot CPU.", "s", {WORKER: ROW_SECONDS}),
             plot("The same, against the pool's mean", "Above 1.5 for 10 minutes: alert "
                  "TributaryStraggler.", "none",
                  {WORKER: f"({ROW_SECONDS}) {OF_POOL} "
                           f"({rates('worker_attend_seconds_total', 'instance, pool')} / "
                           f"{POOL_ROWS})"},
                  decimals=2, limits={"green": None, "red": 1.5}),
             plot("Busiest worker's work over the mean", "Placement, not hardware: near 1 with "
                  "many sequences; high with few, which is no fault.", "none",
                  {"{{pool}}": f"tributary_balance_ratio{POOL}"}, decimals=2)]),
        (7, [plot("Share of the work, by worker", "Rows attended.", "percentunit",
                  {WORKER: f"{rate('worker_attended_rows_total')} {OF_POOL} {POOL_ROWS}"}),
             plot("Homes, by worker", "A home projects, merges and answers for its sequences.",
                  "short", {WORKER: f"tributary_worker_homes{POOL}"})])],
    "Is anything wrong in the numbers?": [
        (7, [plot("Results recomputed in float64", "None while rounds run: alert "
                  "TributaryCanariesStopped.", "ops",
                  {"{{pool}}: checked": rates("canary_checks_total", "pool"),
                   "{{pool}}: failed": rates("canary_failures_total", "pool")}),
             plot("Error of the last one", "Relative, against float64. bf16 rows and queries: some "
                  "1e-3; the bound is 2e-2.", "sci",
                  {"{{pool}}": f"tributary_canary_error_ratio{POOL}"}),
             plot("Messages with rows that were refused", "corrupt: the checksum is wrong. The "
                  "others are late, repeated or out of range.", "ops",
                  {"{{reason}}": rates("refused_rows_total", "reason")})]),
        (7, [plot("Rounds that failed, items refused", "Counted over 5 minutes.", "short",
                  {"failed rounds": f"sum({counted('failed_rounds_total')})",
                   "refused items": f"sum({counted('refused_items_total')})"}),
             plot("Steps", "aborted: ended with nothing accepted.", "ops",
                  {"{{result}}": rates("steps_total", "result")}),
             plot("HTTP answers", "By status.", "reqps",
                  {"{{code}}": rates("http_requests_total", "code", TIER)})])],
}


def placed():
    """All panels, line by line, and a row of its own for each question."""
    panels, y = [], 0

    def place(item, height, width, x):
        panels.append({"id": len(panels) + 1, **item,
                       "gridPos": {"h": height, "w": width, "x": x, "y": y}})

    for question, lines in QUESTIONS.items():
        place({"type": "row", "title": question, "collapsed": False, "panels": []}, 1, 24, 0)
        y += 1
        for height, line in lines:
            width = 24 // len(line)
            for i, item in enumerate(line):
                place(item, height, width, i * width)
            y += height
    return panels


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE,
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2,
            "includeAll": True, "multi": True, "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "sort": 1}


print(json.dumps({
    "uid": "tributary", "title": "Tributary",
    "description": "A decode tier: is it healthy, is it full, what is slow, which worker "
                   "straggles, is anything wrong in the numbers.",
    "tags": ["tributary"], "schemaVersion": 38, "version": 1, "editable": True, "graphTooltip": 1,
    "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
    "templating": {"list": [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
         "current": {}},
        variable("instance", "Control plane", "label_values(tributary_build_info, instance)"),
        variable("pool", "Pool", f"label_values(tributary_pages_capacity{TIER}, pool)")]},
    "annotations": {"list": [
        {"name": "Pools lost", "datasource": SOURCE, "enable": True, "iconColor": "red",
         "expr": f"changes(tributary_pools_lost_total{TIER}[1m]) > 0",
         "titleFormat": "a pool was lost"}]},
    "links": [], "panels": placed()}, indent=1))
