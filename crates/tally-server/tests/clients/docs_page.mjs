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

  const api = await (await fetch(new URL("../openapi.json", page))).json();
  const operations = Object.values(api.paths).flatMap((path) => Object.values(path));
  const described = new Map(operations.map((call) => [`operations-${call.tags[0]}-${call.operationId}`, call]));
  const calls = [];
  for (const block of await tab.$$(".opblock")) {
    await block.$eval(".opblock-summary-control", (control) => control.click());
    await block.waitForSelector("button.execute");
    // The fields of the form appear one after the other, and the button before the page has read the description of the
    // call, which has the responses. A click before that is an error on the page.
    const isFilled = (node, fields, hasBody) => {
      const rows = [...node.querySelectorAll("tr[data-param-name]")];
      return (
        node.querySelector(".responses-table tr.response") &&
        rows.length === fields &&
        rows.every((row) => row.querySelector("input, select, button")) &&
        rows.every((row) => !row.querySelector(".required") || row.querySelector("input").value) &&
        (!hasBody || node.querySelector(".opblock-section-request-body textarea")?.value)
      );
    };
    const { parameters = [], requestBody } = described.get(await block.evaluate((node) => node.id));
    await tab.waitForFunction(isFilled, { polling: 50 }, block, parameters.length, Boolean(requestBody));
    const prefilled = await block.evaluate((node) => ({
      id: node.id,
      requestId: node.querySelector("tr[data-param-name=Idempotency-Key] input")?.value ?? null,
    }));
    // Found only now: the page may have replaced the button while it filled the form.
    await block.$eval("button.execute", (button) => button.click());
    const answered = (node) => node.querySelector(".live-responses-table tbody .response-col_status")?.innerText.trim();
    await tab.waitForFunction(answered, { polling: 50 }, block);
    const call = await block.evaluate((node) => ({
      method: node.querySelector(".opblock-summary-method").innerText.trim(),
      path: node.querySelector(".opblock-summary-path").getAttribute("data-path"),
      status: node.querySelector(".live-responses-table tbody .response-col_status").innerText.trim(),
      body: node.querySelector(".live-responses-table .highlight-code")?.innerText ?? "",
    }));
    calls.push({ ...prefilled, ...call, width: await widthOf(tab) });
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
