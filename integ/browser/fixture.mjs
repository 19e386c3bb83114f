// A bundle with one rollout, the same at every call: canary steps, a failed node that freezes it, a closed window.

const NAMESPACES = ["shop", "payments", "search", "monitoring"];
const OWNERS = ["Deployment/web", "Deployment/cart", "StatefulSet/db", "Deployment/search-frontend", "StatefulSet/queue", "Job/report"];
const START = Date.parse("2026-03-02T08:00:00Z") / 1000;

/** Returns a bundle of so many nodes, each with so many pods. `hostile` is the name of one more node, pod and field manager. */
export function bundle(nodes, pods, hostile) {
  let seed = 7;
  const random = (below) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * below);
  };
  const time = (second) => new Date((START + second) * 1000).toISOString().replace(".000Z", "Z");
  const hex = (length) => Array.from({ length }, () => random(16).toString(16)).join("");
  const boot = () => `${hex(8)}-${hex(4)}-${hex(4)}-${hex(4)}-${hex(12)}`;
  const metadata = (name, label) => ({
    name, namespace: "brupop-system", labels: { "brupop.bottlerocket.aws/history": label, "brupop.bottlerocket.aws/record": record },
  });
  const record = "rollout-7-5d1e6f2a90";
  const failing = Math.floor(nodes / 3);
  const canary = Math.max(1, Math.floor(nodes / 10));
  const parallel = Math.max(3, Math.floor(nodes / 15));
  const rows = [];
  const entries = [{ time: time(0), kind: "Begun", message: "1.42.0 on 60 nodes" }];
  const slots = Array(parallel).fill(0);
  let frozen = 0;
  const attempt = (name, index, number, from, fails) => {
    const slot = slots.indexOf(Math.min(...slots));
    const begin = Math.max(slots[slot], from);
    const [stage, drain, reboot, soak] = [40 + random(60), 60 + random(fails ? 900 : 420), 70 + random(60), 300];
    const ended = begin + stage + drain + (fails ? 900 : reboot + soak);
    slots[slot] = ended + 20;
    const list = Array.from({ length: pods }, (_, pod) => {
      const owner = OWNERS[random(OWNERS.length)];
      const base = owner.split("/")[1];
      return {
        namespace: NAMESPACES[random(NAMESPACES.length)], name: hostile && pod === 0 ? hostile : `${base}-${hex(9)}-${hex(5)}`,
        uid: boot(), owner, budgets: base === "report" ? [] : [base], services: base === "report" ? [] : [base, `${base}-internal`],
        moved: random(40) === 0 ? "Forced" : random(25) === 0 ? "LeftToReboot" : "Evicted",
      };
    });
    rows.push({
      node: name, uid: boot(), rollout: 7, step: index < canary ? 1 : 0, attempt: number, from: "1.41.0", to: "1.42.0",
      result: fails ? "BootFailed" : "Updated", message: fails ? "the host runs 1.41.0 after its reboot into 1.42.0" : "",
      started: time(begin), drainStarted: time(begin + stage), drainEnded: time(begin + stage + drain),
      ...(fails ? {} : { soakStarted: time(begin + stage + drain + reboot) }), ended: time(ended),
      bootBefore: boot(), bootAfter: boot(), pods: list,
      running: fails ? [] : list.slice(0, Math.ceil(pods / 2)).map((pod) => `${pod.namespace}/${pod.name}`),
    });
    return ended;
  };
  const name = (index) => (hostile && index === 1 ? hostile : `ip-10-${index >> 8}-${index & 255}-${17 + (index % 200)}.eu-central-1.compute.internal`);
  let from = 0, canaryEnd = 0;
  for (let index = 0; index < nodes; index += 1) {
    if (index === canary) {
      canaryEnd = Math.max(...slots);
      from = canaryEnd + 2400;
      entries.push({ time: time(canaryEnd + 1800), kind: "Approved", step: 1, fieldManager: hostile ?? "kubectl-annotate", message: "canary step 1" });
      entries.push({ time: time(from), kind: "StepPassed", step: 1, message: "" });
    }
    const ended = attempt(name(index), index, 1, from, index === failing);
    if (index === failing) {
      entries.push({ time: time(ended), kind: "Frozen", message: "1 of 1 failures: BootFailed" });
      entries.push({ time: time(ended + 5400), kind: "Resumed", fieldManager: "kubectl-annotate", message: "failures no longer stop updates" });
      frozen = ended;
      attempt(name(index), index, 2, ended + 5400, false);
      from = ended + 5400;
    }
    if (index === Math.floor((nodes * 2) / 3)) {
      const last = Math.max(...slots);
      entries.push({ time: time(last), kind: "WindowClosed", message: "window Mon-Fri 08:00-18:00" });
      entries.push({ time: time(last + 7200), kind: "WindowOpened", message: "window Mon-Fri 08:00-18:00" });
      from = last + 7200;
    }
  }
  const end = Math.max(...slots);
  entries.push({ time: time(end), kind: "Completed", message: "every node runs 1.42.0" });
  entries[0].message = `1.42.0 on ${nodes} nodes`;
  const pages = [], summaries = [];
  for (let start = 0; start < rows.length; start += 25) {
    const part = rows.slice(start, start + 25), number = pages.length + 1;
    pages.push({
      apiVersion: "brupop.bottlerocket.aws/v1", kind: "BottlerocketRolloutHistory",
      metadata: metadata(`${record}-p${String(number).padStart(3, "0")}`, "page"), spec: { record, page: { number, rows: part } },
    });
    summaries.push({ digest: "", nodes: part.length, pods: part.length * pods, bytes: 0 });
  }
  const head = {
    apiVersion: "brupop.bottlerocket.aws/v1", kind: "BottlerocketRolloutHistory", metadata: metadata(record, "record"),
    spec: { record, rollout: {
      number: 7, operator: { namespace: "brupop-system", name: "default", uid: boot() }, revision: { name: "default-6c8d5b7f4", number: 3 },
      variant: "aws-k8s-1.37", arch: "x86_64", version: "1.42.0", from: [{ version: "1.41.0", nodes }], begun: time(0),
      steps: [{ nodes: "10%", soak: "30m", approval: "Manual" }], policy: "{}",
    } },
    status: { phase: "Completed", ended: time(end), nodes: rows.length, pods: rows.length * pods, entries, pages: summaries },
  };
  return { form: 1, records: [head], pages, keys: {}, frozen };
}
