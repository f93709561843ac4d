// Opens the page at /docs in a real browser, executes every call as it is prefilled, and prints what it saw as JSON:
// `node docs_page.mjs MODULES BROWSER PAGE WIDTH HEIGHT SCREENSHOT`.

import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, executablePath, page, width, height, screenshot] = process.argv.slice(2);
const puppeteer = createRequire(join(modules, "index.js"))("puppeteer-core");

// How wide the page is, including what one has to scroll to.
const widthOf = (tab) => tab.evaluate(() => document.documentElement.scrollWidth);

// The sandbox does not work for root; the page is our own.
const browser = await puppeteer.launch({
  executablePath,
  headless: true,
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
});
try {
  const tab = await browser.newPage();
  tab.setDefaultTimeout(60_000);
  await tab.setViewport({ width: Number(width), height: Number(height) });
  const errors = [];
  const hosts = new Set();
  tab.on("console", (message) => ["error", "warn"].includes(message.type()) && errors.push(message.text()));
  tab.on("pageerror", (error) => errors.push(String(error)));
  tab.on("request", (request) => request.url().startsWith("data:") || hosts.add(new URL(request.url()).host));

  await tab.goto(page);
  await tab.waitForSelector(".opblock");
  const facts = await tab.evaluate(() => ({
    title: document.title,
    hasExploreBox: document.querySelector(".topbar, .download-url-wrapper") !== null,
  }));

  const calls = [];
  for (const block of await tab.$$(".opblock")) {
    await block.$eval(".opblock-summary-control", (control) => control.click());
    const execute = await block.waitForSelector("button.execute");
    const prefilled = await block.evaluate((node) => ({
      id: node.id,
      requestId: node.querySelector("tr[data-param-name=Idempotency-Key] input")?.value ?? null,
    }));
    await execute.evaluate((button) => button.click());
    const live = await block.waitForSelector(".live-responses-table tbody .response-col_status");
    const status = await live.evaluate((cell) => cell.innerText.trim().split(/\s/)[0]);
    const call = await block.evaluate((node) => ({
      method: node.querySelector(".opblock-summary-method").innerText.trim(),
      path: node.querySelector(".opblock-summary-path").getAttribute("data-path"),
      body: node.querySelector(".live-responses-table .highlight-code")?.innerText ?? "",
    }));
    calls.push({ ...prefilled, ...call, status, width: await widthOf(tab) });
    // A page with every call open is slow.
    if (!prefilled.id.endsWith("-increment")) {
      await block.$eval(".opblock-summary-control", (control) => control.click());
    }
  }
  await tab.screenshot({ path: screenshot, fullPage: true });
  console.log(JSON.stringify({ ...facts, calls, errors, hosts: [...hosts] }));
} finally {
  await browser.close();
}
