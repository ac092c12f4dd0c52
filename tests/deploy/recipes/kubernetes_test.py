#!/usr/bin/env python3
# The overlays of deploy/recipes/kubernetes, rendered by kubectl: their contents, whether the parts
# fit together, and whether they follow the schemas.
import json
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import ROOT, run  # noqa: E402

try:
    import yaml
except ImportError:
    yaml = None
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

RECIPE = ROOT / "deploy" / "recipes" / "kubernetes"
OVERLAYS = {"cpu": "cpu", "gpu": "cuda"}  # and the image of each
TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict}
CUSTOM = json.loads((pathlib.Path(__file__).parent / "custom_resources.json").read_text())


def why_not():
    if not shutil.which("kubectl"):
        return "kubectl is not installed"
    return None if yaml else "Python's yaml is not installed (python3-yaml)"


def render(overlay, with_token=True):
    """As an operator does, in a copy: the token is not in the repository."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "kubernetes")
        shutil.copytree(RECIPE, copy)
        token = copy / "base" / "token"
        token.unlink(missing_ok=True)
        (copy / "workers" / "secret").write_text(secrets.token_hex(32))
        if with_token:
            token.write_text(secrets.token_hex(32))
        return subprocess.run(["kubectl", "kustomize", str(copy / "overlays" / overlay)],
                              capture_output=True, text=True, timeout=60)


def check(value, schema, path):
    """Fields and types of a custom resource, against custom_resources.json."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no object"
            return
        for key, inner in value.items():
            if key not in schema and "*" not in schema:
                yield f"{path}: has no field '{key}'"
            else:
                yield from check(inner, schema.get(key, schema.get("*")), f"{path}.{key}")
    elif isinstance(schema, list) and schema[0] == "enum":
        if value not in schema[1:]:
            yield f"{path}: {value!r} is none of {schema[1:]}"
    elif isinstance(schema, list):
        for i, inner in enumerate(value):
            yield from check(inner, schema[0], f"{path}[{i}]")
    elif schema != "pod" and type(value) is not TYPES[schema]:
        yield f"{path}: {value!r} is no {schema}"


def matches(labels, selector):
    def holds(term):
        return labels.get(term["key"]) in term["values"]  # all of ours are `In`
    return (selector.get("matchLabels", {}).items() <= labels.items()
            and all(holds(term) for term in selector.get("matchExpressions", [])))


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            print(f"\nNO KUBECTL, ITS RECIPES ARE NOT TESTED: {reason}", file=sys.stderr)
            raise unittest.SkipTest(f"NO KUBECTL: {reason}")
        cls.rendered = {}
        for overlay in OVERLAYS:
            done = render(overlay)
            if done.returncode != 0:
                raise AssertionError(done.stderr)
            cls.rendered[overlay] = list(yaml.safe_load_all(done.stdout))

    def find(self, overlay, kind, name=None):
        found = [each for each in self.rendered[overlay] if each["kind"] == kind
                 and name in (None, each["metadata"]["name"])]
        self.assertEqual(len(found), 1, f"{kind} {name}")
        return found[0]

    def pods(self, overlay):
        """Name, template of every kind of pod."""
        yield "control", self.find(overlay, "Deployment")["spec"]["template"]
        if overlay == "cpu":
            yield "worker", self.find(overlay, "StatefulSet")["spec"]["template"]
            return
        for name, replica in self.find(overlay, "MPIJob")["spec"]["mpiReplicaSpecs"].items():
            yield name, replica["template"]

    def test_everything_is_there_and_in_the_namespace(self):
        for overlay, objects in self.rendered.items():
            kinds = sorted(each["kind"] for each in objects)
            pool = {"cpu": ["Secret", "Service", "StatefulSet"], "gpu": ["MPIJob"]}[overlay]
            self.assertEqual(kinds, sorted(["ConfigMap", "Deployment", "Namespace",
                                            "NetworkPolicy", "NetworkPolicy", "PodDisruptionBudget",
                                            "Secret", "Service", "Service", "ServiceMonitor",
                                            *pool]), overlay)
            for each in objects:
                if each["kind"] != "Namespace":
                    self.assertEqual(each["metadata"]["namespace"], "tributary", each["kind"])

    def test_no_token_is_committed(self):
        done = render("cpu", with_token=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("token", done.stderr)
        for name in ("base/token", "workers/secret"):
            self.assertIn(f"/deploy/recipes/kubernetes/{name}\n", (ROOT / ".gitignore").read_text())

    def test_schemas(self):
        if not kubernetes_validate:
            print("\nNOT VALIDATED AGAINST THE SCHEMAS OF KUBERNETES: the Python package "
                  "kubernetes-validate is not installed", file=sys.stderr)
        for overlay, objects in self.rendered.items():
            for each in objects:
                kind = each["kind"]
                if kind in CUSTOM:
                    self.assertEqual(each["apiVersion"], CUSTOM[kind]["apiVersion"])
                    self.assertEqual(list(check(each["spec"], CUSTOM[kind]["spec"], kind)), [])
                elif kubernetes_validate:
                    kubernetes_validate.validate(each, "1.32", strict=True)
            for name, template in self.pods(overlay):
                if kubernetes_validate:
                    kubernetes_validate.validate(
                        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()},
                         "spec": template["spec"]}, "1.32", strict=True)

    def test_wrong_custom_resources_are_found(self):
        job = json.loads(json.dumps(self.find("gpu", "MPIJob")["spec"]))
        job["runPolicy"]["cleanPods"] = "All"
        job["slotsPerWorker"] = "1"
        job["mpiImplementation"] = "LAM"
        self.assertEqual(len(list(check(job, CUSTOM["MPIJob"]["spec"], "MPIJob"))), 3)

    def test_pods_have_no_privileges_and_bounded_resources(self):
        for overlay in OVERLAYS:
            for name, template in self.pods(overlay):
                with self.subTest(overlay=overlay, pod=name):
                    spec = template["spec"]
                    self.assertFalse(spec["automountServiceAccountToken"])
                    self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                    self.assertEqual(spec["securityContext"]["seccompProfile"]["type"],
                                     "RuntimeDefault")
                    for container in spec["containers"]:
                        rights = container["securityContext"]
                        self.assertFalse(rights["allowPrivilegeEscalation"])
                        self.assertEqual(rights["capabilities"], {"drop": ["ALL"]})
                        self.assertIn("memory", container["resources"]["limits"])
                        self.assertIn("cpu", container["resources"]["requests"])
                        self.assertRegex(container["image"], rf"/tributary:{OVERLAYS[overlay]}$")
                        volumes = {volume["name"] for volume in spec.get("volumes", [])}
                        for mount in container.get("volumeMounts", []):
                            self.assertIn(mount["name"], volumes)

    def test_probes_services_and_budget(self):
        for overlay in OVERLAYS:
            template = self.find(overlay, "Deployment")["spec"]["template"]
            container = template["spec"]["containers"][0]
            self.assertEqual(container["livenessProbe"]["httpGet"]["path"], "/healthz")
            self.assertEqual(container["readinessProbe"]["httpGet"]["path"], "/readyz")
            for name in ("tributary", "tributary-control"):
                service = self.find(overlay, "Service", name)["spec"]
                self.assertTrue(matches(template["metadata"]["labels"],
                                        {"matchLabels": service["selector"]}), name)
            # A pool must be able to reach a control plane that is not ready because it has no pool.
            self.assertTrue(self.find(overlay, "Service", "tributary-control")["spec"]
                            ["publishNotReadyAddresses"])
            monitor = self.find(overlay, "ServiceMonitor")["spec"]
            service = self.find(overlay, "Service", "tributary-control")
            self.assertTrue(matches(service["metadata"]["labels"], monitor["selector"]))
            self.assertEqual(monitor["endpoints"][0]["port"], service["spec"]["ports"][0]["name"])
        worker = self.find("gpu", "MPIJob")["spec"]["mpiReplicaSpecs"]["Worker"]
        budget = self.find("gpu", "PodDisruptionBudget")["spec"]
        self.assertEqual(budget["minAvailable"], worker["replicas"])
        self.assertTrue(matches(worker["template"]["metadata"]["labels"], budget["selector"]))

    def test_pods_of_a_stateful_set_find_each_other(self):
        pool = self.find("cpu", "StatefulSet")
        spec, name = pool["spec"], pool["metadata"]["name"]
        labels = spec["template"]["metadata"]["labels"]
        container = spec["template"]["spec"]["containers"][0]
        slots = next(each["value"] for each in container["env"] if each["name"] == "SLOTS")
        self.assertEqual(slots, str(spec["replicas"]))
        service = self.find("cpu", "Service", spec["serviceName"])["spec"]
        self.assertTrue(service["publishNotReadyAddresses"])
        for selector in (service["selector"], spec["selector"]["matchLabels"]):
            self.assertTrue(matches(labels, {"matchLabels": selector}))
        # As Kubernetes puts them, for the first one.
        arguments = [each.replace("$(SLOTS)", slots).replace("$(SLOT)", "0")
                     for each in container["args"]]
        self.assertIn(f"--leader={name}-0.{spec['serviceName']}:{service['ports'][0]['port']}",
                      arguments)
        self.assertIn(f"--name={name}", arguments)
        index = {**labels, "apps.kubernetes.io/pod-index": "0"}
        budget = self.find("cpu", "PodDisruptionBudget")["spec"]
        self.assertTrue(matches(index, budget["selector"]))
        self.assertFalse(matches({**index, "apps.kubernetes.io/pod-index": "1"},
                                 budget["selector"]))
        with tempfile.TemporaryDirectory() as folder:
            put = {"--config=/etc/tributary/tributary.toml": pathlib.Path(folder, "tributary.toml"),
                   "--pool-secret-file=/etc/tributary-pool/secret": pathlib.Path(folder, "nothing")}
            put["--config=/etc/tributary/tributary.toml"].write_text(
                self.find("cpu", "ConfigMap")["data"]["tributary.toml"])
            result = run(*[f"{each.partition('=')[0]}={put[each]}" if each in put else each
                           for each in arguments])
            self.assertNotEqual(result.status, 0)
            self.assertIn("nothing", result.stderr)  # all is well but the secret's file

    def test_network_policies_cover_every_pod(self):
        for overlay in OVERLAYS:
            policies = [each["spec"] for each in self.rendered[overlay]
                        if each["kind"] == "NetworkPolicy"]
            for name, template in self.pods(overlay):
                covering = [policy for policy in policies
                            if matches(template["metadata"]["labels"], policy["podSelector"])]
                self.assertEqual(len(covering), 1, name)
                self.assertEqual(covering[0]["policyTypes"], ["Ingress", "Egress"])

    def test_clients_reach_the_ports_of_the_data_plane_alone(self):
        for overlay in OVERLAYS:
            pool = next(each["spec"] for each in self.rendered[overlay]
                        if each["kind"] == "NetworkPolicy"
                        and each["metadata"]["name"] == "tributary-pool")
            # Whom a rule lets in by a label of their own, and not as one of the pool.
            others = [rule for rule in pool["ingress"]
                      if not any(matches({"app.kubernetes.io/name": "tributary",
                                          "app.kubernetes.io/component": "worker"},
                                         peer["podSelector"]) for peer in rule["from"])]
            ports = [(port["port"], port["endPort"]) for rule in others for port in rule["ports"]]
            self.assertEqual(ports, [(7400, 7599)])
            self.assertIn("port = 7400 ", self.find(overlay, "ConfigMap")["data"]["tributary.toml"])
            if overlay == "cpu":
                continue
            launcher = self.find(overlay, "MPIJob")["spec"]["mpiReplicaSpecs"]["Launcher"]
            arguments = launcher["template"]["spec"]["containers"][0]["args"]
            self.assertIn("UCX_TCP_PORT_RANGE=7500-7599", arguments)
            for network in ("oob_tcp_if_include", "btl_tcp_if_include"):
                self.assertEqual(arguments[arguments.index(network) + 1], "eth0")

    def test_the_program_takes_its_configuration(self):
        for overlay in OVERLAYS:
            texts = self.find(overlay, "ConfigMap")["data"]
            self.assertEqual(list(texts), ["tributary.toml"])
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "tributary.toml")
                path.write_text(texts["tributary.toml"])
                result = run("config", "--check", path)
                self.assertEqual(result.status, 0, result)
            if overlay == "cpu":
                continue
            launcher = self.find(overlay, "MPIJob")["spec"]["mpiReplicaSpecs"]["Launcher"]
            arguments = launcher["template"]["spec"]["containers"][0]["args"]
            self.assertIn("--name=" + self.find(overlay, "MPIJob")["metadata"]["name"], arguments)


if __name__ == "__main__":
    unittest.main()
