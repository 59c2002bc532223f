// A chart in its figure: title, caption, plot with a summary for screen readers, and the same numbers as a table.
const charts = new Map();

// Plotly interprets some markup in text; names from run folders must be shown literally.
const plain = (text) => String(text).replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');

function axis(title, more = {}) {
  return { title: { text: title, standoff: 8, font: { size: 12, color: colour('soft') } }, gridcolor: colour('line'),
    zeroline: false, linecolor: colour('line'), tickfont: { size: 11, color: colour('soft') }, automargin: true, ...more };
}

// An axis of fractions, labelled in steps of 1, 2 or 5 times a power of ten, as "85 %" (Plotly's own format has no space).
// Plotly would show equal values between -100 % and 200 %, where no fraction can be.
function shareAxis(title, values, more = {}) {
  const seen = values.filter(known);
  let [low, high] = seen.length ? [Math.min(...seen), Math.max(...seen)] : [0, 1];
  const narrow = high - low < 0.01;
  if (narrow) [low, high] = [Math.max(low - 0.05, 0), Math.min(high + 0.05, 1)];
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => 5 * size >= high - low);
  const first = Math.max(Math.ceil(low / step) - 1, 0), last = Math.min(Math.floor(high / step) + 1, Math.floor(1 / step + 1e-6));
  const ticks = Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
  const room = narrow ? { range: [low - 0.005, high + 0.005] } : {};
  return axis(title, { tickvals: ticks, ticktext: ticks.map((v) => `${Number((100 * v).toPrecision(6))} %`), ...room, ...more });
}

// A logarithmic axis of fractions, labelled at round values.
function logAxis(title, values, more = {}) {
  const seen = values.filter((v) => known(v) && v > 0);
  const [low, high] = [Math.min(...seen), Math.max(...seen)];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    const steps = high / low > 300 ? [1] : high / low > 20 ? [1, 2, 5] : [1, 2, 3, 5];
    for (const step of steps) ticks.push(step * 10 ** power);
  }
  const label = (v) => `${Number((100 * v).toPrecision(3))} %`;
  // If it is too narrow for two labels, it is widened, so that the reader can see the order of magnitude.
  const few = seen.length && ticks.filter((v) => v >= low && v <= high).length < 2;
  const room = few ? { range: [Math.log10(low / 2), Math.log10(high * 2)] } : {};
  return axis(title, { type: 'log', tickvals: ticks, ticktext: ticks.map(label), ...room, ...more });
}

function layout(more) {
  return {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', showlegend: false, hovermode: 'closest', dragmode: false,
    margin: { l: 8, r: 12, t: 8, b: 8 }, font: { family: getComputedStyle(document.body).fontFamily, color: colour('ink'), size: 12 },
    hoverlabel: { bgcolor: colour('card'), bordercolor: colour('line'), font: { color: colour('ink'), size: 12 }, align: 'left', namelength: -1 },
    ...more,
  };
}

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, showTips: false, doubleClick: 'reset' };

// what: {title, caption, summary, legend, traces, layout, head, rows, empty, height}; `empty` says why there is nothing to draw.
function drawChart(id, what) {
  const figure = byId(id);
  if (!charts.has(id)) {
    const title = make('h3', { id: `${id}-title` });
    const caption = make('figcaption');
    const legend = make('ul', { class: 'legend' });
    const plot = make('div', { class: 'plot', role: 'img' });
    const empty = make('p', { class: 'empty' });
    const place = make('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-labelledby': `${id}-title` });
    const details = make('details', {}, make('summary', { 'aria-describedby': `${id}-title` }, 'Show the numbers'), place);
    figure.setAttribute('aria-labelledby', `${id}-title`);
    figure.replaceChildren(title, caption, legend, plot, empty, details);
    const parts = { title, caption, legend, plot, empty, place, details };
    details.addEventListener('toggle', () => fillTable(parts));
    charts.set(id, parts);
  }
  const parts = charts.get(id);
  parts.what = what;
  parts.title.textContent = what.title;
  parts.caption.textContent = what.caption || '';
  parts.empty.textContent = what.empty || '';
  parts.plot.hidden = parts.details.hidden = Boolean(what.empty);
  parts.empty.hidden = !what.empty;
  fillLegend(parts.legend, what.empty ? [] : what.legend || []);
  if (what.empty) { Plotly.purge(parts.plot); return; }
  parts.plot.setAttribute('aria-label', `${what.title}. ${what.summary} The numbers are in the table that follows.`);
  parts.plot.style.height = what.height ? `${what.height}px` : '';
  Plotly.react(parts.plot, what.traces, layout(what.layout || {}), CONFIG);
  fillTable(parts);
}

function fillTable(parts) {
  if (parts.details.open) parts.place.replaceChildren(plainTable(parts.what.title, parts.what.head, parts.what.rows));
}

// Items: [glyph, name of its colour, text].
function fillLegend(place, items) {
  place.replaceChildren(...items.map(([glyph, hue, text]) => {
    const sign = make('b', { 'aria-hidden': 'true' }, glyph);
    sign.style.color = hue.startsWith('#') ? hue : `var(--${hue})`;
    return make('li', {}, sign, text);
  }));
}
