// Which runs are shown (focus, filter), and in which colours.
const state = { data: null, focus: null, filter: '', layer: null, chosen: new Set() };
const MOST = 10; // maximum number of runs side by side, and of series with their own colour
// For series that are not methods, and for further series of a method.
const SPARE = ['#2F7FE0', '#D55E00', '#11A579', '#CC79A7', '#E0A100', '#7B61D9', '#3BB3D9', '#8C6D46', '#E8588B', '#5E8F00'];
const SYMBOLS = ['circle', 'square', 'diamond', 'triangle-up', 'cross', 'x', 'star', 'triangle-down', 'pentagon', 'hexagon'];
const GLYPHS = ['●', '■', '◆', '▲', '✚', '✖', '★', '▼', '⬟', '⬢'];

const runs = () => state.data.runs;
const focused = () => runs().find((run) => run.id === state.focus) || runs()[0];
// A label that distinguishes a run from others of its name: by seed, or by folder. A table with a column of seeds omits the seed.
function labelOf(run, seeds = true) {
  const same = runs().filter((r) => r.name === run.name);
  if (same.filter((r) => r.seed === run.seed).length > 1) return run.id.startsWith(run.name) ? run.id : `${run.name} (${run.id})`;
  return seeds && same.length > 1 ? `${run.name}, seed ${run.seed}` : run.name;
}

const words = (run) => `${run.name} ${run.id} ${run.method} ${run.task} seed ${run.seed} ${run.result ? 'finished' : 'unfinished'}`.toLowerCase();

function passes(run) {
  const text = words(run);
  return state.filter.toLowerCase().split(/\s+/).every((term) => text.includes(term));
}

const shownRuns = () => runs().filter(passes);
const chosenRuns = () => runs().filter((run) => state.chosen.has(run.id));

// The runs that charts compare: those chosen, or those that pass the filter, of the same task as the run in focus, which is
// always included and drawn on top.
function peers() {
  const focus = focused();
  return [...(state.chosen.size ? chosenRuns() : shownRuns()).filter((run) => run.task === focus.task && run !== focus), focus];
}

// Series are methods, or recipes if all runs have the same method.
function seriesOf(run) {
  return new Set(runs().map((r) => r.method).filter((m) => m !== 'dense')).size > 1 || run.method === 'dense' ? run.method : run.name;
}

// A method has the same colour here as in every figure. The best ten have their own colour and symbol; the rest are grey,
// because more could not be distinguished.
function palette() {
  const best = new Map();
  for (const run of runs()) {
    const key = seriesOf(run);
    if (key !== 'dense') best.set(key, Math.max(best.get(key) ?? -1, run.result?.accuracy_last ?? -1));
  }
  const order = [...best.keys()].sort((a, b) => best.get(b) - best.get(a));
  const found = new Map([['dense', { colour: 'soft', symbol: 'line-ew-open', glyph: '┅', named: true }]]);
  const used = new Set();
  const hue = (key) => {
    // The first series of a method has the method's colour, even if it is named by its recipe.
    const own = state.data.colours[runs().find((run) => seriesOf(run) === key)?.method];
    const free = own && !used.has(own) ? own : SPARE.find((one) => !used.has(one)) || own;
    used.add(free);
    return free;
  };
  order.forEach((key, i) => found.set(key, i < MOST
    ? { colour: hue(key), symbol: SYMBOLS[i], glyph: GLYPHS[i], named: true }
    : { colour: key === seriesOf(focused()) ? 'ink' : 'faint', symbol: 'circle', glyph: '●', named: key === seriesOf(focused()) }));
  return found;
}

// Colours of the charts of layers: the run in focus has its method's colour, and further runs of that method are grey.
function layerColours(focus, others) {
  const styles = palette();
  const own = focus.method === 'dense' ? 'ink' : styles.get(seriesOf(focus)).colour;
  const of = (run) => (seriesOf(run) === seriesOf(focus) ? 'faint' : styles.get(seriesOf(run)).colour);
  const named = new Map(others.filter((run) => of(run) !== 'faint').map((run) => [seriesOf(run), of(run)]));
  const grey = others.filter((run) => of(run) === 'faint').length;
  const rest = [...named].map(([name, hue]) => ['━', hue, name]);
  return { own, of, rest: grey ? [...rest, ['━', 'faint', `other runs (${grey})`]] : rest };
}

function drawLegends() {
  const styles = palette();
  const present = new Set(peers().map(seriesOf));
  const items = [...styles].filter(([key, style]) => present.has(key) && style.named).map(([key, style]) => [style.glyph, style.colour, key]);
  const others = [...styles].filter(([key, style]) => present.has(key) && !style.named).map(([key]) => key);
  if (others.length) items.push(['●', 'faint', `others: ${others.join(', ')}`]);
  for (const place of document.querySelectorAll('[data-legend]')) fillLegend(place, present.size < 2 ? [] : items);
}
