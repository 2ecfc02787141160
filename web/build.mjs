// Bundles the libraries of the page into files that the head serves; the page's own modules are served as they are.
import { build } from "esbuild";
import { copyFile, readFile, writeFile } from "node:fs/promises";

const OUT = new URL("../services/rollmill_services/head/page/vendor/", import.meta.url);
const BUNDLES = { "preact.js": ["preact", "htm"], "uplot.js": ["uplot"] };

const read = (path) => readFile(new URL(path, import.meta.url), "utf8");
const lock = JSON.parse(await read("package-lock.json"));
const version = (name) => lock.packages[`node_modules/${name}`].version;

for (const [file, names] of Object.entries(BUNDLES)) {
  const licences = await Promise.all(names.map((name) => read(`node_modules/${name}/LICENSE`)));
  await build({
    entryPoints: [new URL(file, import.meta.url).pathname],
    outfile: new URL(file, OUT).pathname,
    banner: { js: `/* ${names.map((name) => `${name} ${version(name)}`).join(", ")} */` },
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    legalComments: "none",
  });
  await writeFile(new URL(file.replace(".js", ".licence.txt"), OUT), licences.join("\n\n"));
}
await copyFile(new URL("node_modules/uplot/dist/uPlot.min.css", import.meta.url), new URL("uplot.css", OUT));
