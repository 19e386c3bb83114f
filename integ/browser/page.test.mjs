// The pages of `kubectl brupop history ID --html` and `simulate --html` in a headless browser. Arguments: the plugin, a folder for files, and a
// folder for the screenshots. `make test-history-html` runs it.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { bundle } from "./fixture.mjs";

const [plugin, work, images] = process.argv.slice(2).map((path) => resolve(path));
// The packages are in the folder for files, so that the sources stay clean.
const load = async (name) => {
  const found = createRequire(join(work, "package.json")).resolve(name);
  return (await import(pathToFileURL(found))).default;
};
const [chromium, puppeteer, png] = [await load("@sparticuz/chromium"), await load("puppeteer-core"), await load("upng-js")];

/** Writes the page of a bundle, and returns its address. */
function generate(name, content) {
  const [json, html] = [join(work, `${name}.json`), join(work, `${name}.html`)];
  writeFileSync(json, JSON.stringify(content));
  execFileSync(plugin, ["history", "7", "--bundle", json, "--html", html], { stdio: ["ignore", "ignore", "inherit"] });
  return { address: pathToFileURL(html).href, bytes: statSync(html).size };
}

const browser = await puppeteer.launch({ args: [...chromium.args], executablePath: await chromium.executablePath(), headless: "shell" });

/** Opens a page. Each error, dialog and request of it fails the test. */
async function open(address, scheme) {
  const page = await browser.newPage();
  page.setDefaultTimeout(60_000);
  const problems = [];
  page.on("console", (message) => problems.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => { problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => { if (request.url() !== address) problems.push(`request: ${request.url()}`); });
  await page.setViewport({ width: 1400, height: 900 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(address, { timeout: 120_000 });
  return { page, problems };
}
const lanes = (page) => page.$$eval('[role="option"]', (rows) => rows.map((row) => row.getAttribute("aria-label")));
const count = (page) => page.$eval("#count", (output) => output.textContent);
const search = async (page, text) => {
  await page.$eval("#search", (input) => { input.value = ""; input.dispatchEvent(new Event("input")); });
  await page.type("#search", text);
};
const frame = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

async function timeline() {
  const { address } = generate("history", bundle(60, 12));
  const colours = [];
  for (const scheme of ["light", "dark"]) {
    const { page, problems } = await open(address, scheme);
    assert.equal(await count(page), "60 of 60 nodes");
    assert.ok((await lanes(page)).length > 10, "lanes are drawn");
    for (const part of [".bar.drain", ".bar.reboot", ".bar.soak", ".band.frozen", ".band.closed", ".line", "#overview .count", "#overview .miss"]) {
      const size = await page.$$eval(part, (found) => Math.max(...found.map((element) => element.getBoundingClientRect()).flatMap((box) => [box.width, box.height])));
      assert.ok(size > 0, `${part} is drawn`);
    }
    await page.click("#failed");
    assert.equal(await count(page), "1 of 60 nodes");
    assert.equal((await page.$$(".cross")).length, 1, "the failed attempt is marked");
    await page.click("#failed");
    await search(page, "ip-10-0-7-");
    assert.deepEqual([await count(page), (await lanes(page)).length], ["1 of 60 nodes", 1], "the search filters");
    await search(page, "statefulset/db");
    assert.notEqual(await count(page), "0 of 60 nodes", "the search finds owners of pods");
    await search(page, "");
    await page.focus("#lanes");
    await page.keyboard.press("End");
    assert.equal(await page.$eval('[aria-selected="true"]', (row) => row.getAttribute("aria-posinset")), "60", "keys select");
    await search(page, "ip-10-0-20-");
    await page.focus("#lanes");
    await page.keyboard.press("ArrowDown");
    const detail = await page.$eval("#detail", (element) => element.textContent);
    for (const part of ["ip-10-0-20-", "BootFailed", "Attempt 2", "Pods: 12", "Deployment/web", "Evicted"]) assert.ok(detail.includes(part), part);
    assert.ok(await page.$eval("#lanes", (box) => document.getElementById(box.getAttribute("aria-activedescendant")).matches('[aria-selected="true"]')));
    await search(page, "");
    await page.click("#in");
    assert.equal((await page.$$("#overview .view")).length, 1, "the selected range is shown");
    await page.click("#all");
    colours.push(await page.$eval("body", (body) => getComputedStyle(body).backgroundColor));
    await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
    await frame(page);
    const path = join(images, `history-${scheme}.png`);
    const picture = png.decode(Buffer.from(await page.screenshot()));
    // Few colours: the file is small.
    writeFileSync(path, Buffer.from(png.encode(png.toRGBA8(picture), picture.width, picture.height, 64)));
    assert.ok(statSync(path).size < 150_000, `${path} has ${statSync(path).size} bytes`);
    assert.deepEqual(problems, []);
    await page.close();
  }
  assert.notEqual(colours[0], colours[1], "dark mode differs");
}

async function simulation() {
  const html = join(work, "simulation.html");
  execFileSync(plugin, ["simulate", "-f", "examples/simulation.yaml", "--courses", "3", "--html", html], { stdio: ["ignore", "ignore", "inherit"] });
  for (const scheme of ["light", "dark"]) {
    const { page, problems } = await open(pathToFileURL(html).href, scheme);
    assert.equal(await count(page), "300 of 300 nodes");
    for (const part of [".bar.drain", ".bar.reboot", ".bar.soak", ".band.closed", "#overview .count", "#overview .out"]) {
      const size = await page.$$eval(part, (found) => Math.max(...found.map((element) => element.getBoundingClientRect()).flatMap((box) => [box.width, box.height])));
      assert.ok(size > 0, `${part} is drawn`);
    }
    const moved = await page.$$eval('[role="option"] .pods', (cells) => cells.map((cell) => Number(cell.textContent)));
    assert.ok(moved.every((number) => number > 0), "evictions are counted");
    await frame(page);
    const path = join(images, `simulation-${scheme}.png`);
    const picture = png.decode(Buffer.from(await page.screenshot()));
    writeFileSync(path, Buffer.from(png.encode(png.toRGBA8(picture), picture.width, picture.height, 64)));
    assert.ok(statSync(path).size < 150_000, `${path} has ${statSync(path).size} bytes`);
    assert.deepEqual(problems, []);
    await page.close();
  }
}

async function hostileNames() {
  const name = "</script><img src=x onerror=alert(1)>";
  const { page, problems } = await open(generate("hostile", bundle(12, 3, name)).address, "light");
  await search(page, "onerror");
  await page.click('[role="option"]');
  assert.equal((await page.$$("img")).length, 0);
  assert.ok((await page.$eval("body", (body) => body.textContent)).includes(name), "the name is shown as text");
  assert.deepEqual(problems, []);
  await page.close();
}

async function withoutScripts() {
  const page = await browser.newPage();
  await page.setJavaScriptEnabled(false);
  await page.goto(pathToFileURL(join(work, "history.html")).href);
  await page.click("#tables summary");
  const box = await (await page.$("#tables table:last-of-type tbody tr")).boundingBox();
  assert.ok(box && box.height > 0, "the tables are there without scripts");
  await page.close();
}

async function largeRollout() {
  const { address, bytes } = generate("large", bundle(5000, 30));
  const { page, problems } = await open(address, "light");
  assert.equal(await count(page), "5000 of 5000 nodes");
  assert.ok((await lanes(page)).length < 100, "only visible lanes are elements");
  const begin = performance.now();
  await page.$eval("#lanes", (box) => { box.scrollTop = box.scrollHeight; });
  await frame(page);
  assert.ok((await page.$eval('[role="option"]:last-child', (row) => row.getAttribute("aria-posinset"))) === "5000");
  await search(page, "ip-10-19-135-");
  assert.equal(await count(page), "1 of 5000 nodes");
  await page.click('[role="option"]');
  assert.ok((await page.$eval("#detail", (element) => element.textContent)).includes("Pods: 30"));
  assert.deepEqual(problems, []);
  console.log(`5,000 nodes with 30 pods each: ${Math.round(bytes / 1e6)} MB; to the end, a search and a selection: ${Math.round(performance.now() - begin)} ms`);
  await page.close();
}

mkdirSync(images, { recursive: true });
try {
  for (const test of [timeline, simulation, hostileNames, withoutScripts, largeRollout]) {
    await test();
    console.log(`ok ${test.name}`);
  }
} finally {
  await browser.close();
}
