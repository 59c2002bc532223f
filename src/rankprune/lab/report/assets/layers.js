// The layers of the run in focus: all of them, then one.
const layerOf = (run, name) => (run.layers || []).find((layer) => layer.name === name);

function reference(run) {
  const found = state.data.references[run.task];
  if (!found) return null;
  const layers = found.run ? runs().find((r) => r.id === found.run)?.layers : found.layers;
  return layers && found.run !== run.id ? { label: found.label, layers } : null;
}

function drawLayers() {
  const focus = focused(), dense = reference(focus);
  const list = focus.layers || [];
  for (const id of ['layers', 'layer']) byId(id).hidden = !list.length;
  if (!list.length) return;
  const others = peers().filter((run) => run !== focus && run.layers && run.method !== 'dense');
  byId('layers-note').textContent = `${focus.name}${focus.result ? '' : ', from its newest checkpoint'}. δ-rank at δ = ${focus.delta}: the smallest rank that leaves less than δ of the norm.`;
  const names = list.map((layer) => layer.name);
  const ticks = { type: 'category', tickvals: names, ticktext: names.map(plain), tickangle: -45, range: [-0.5, names.length - 0.5] };
  const { own, of, rest } = layerColours(focus, others);
  const thin = (value) => others.map((run) => ({ type: 'scatter', mode: 'lines', x: names, y: names.map((name) => { const l = layerOf(run, name); return l ? value(l) : null; }),
    line: { color: colour(of(run)), width: 1.2 }, opacity: 0.75,
    text: names.map((name) => { const l = layerOf(run, name); return l ? `<b>${plain(labelOf(run))}</b><br>${plain(name)}: ${percent(value(l))}` : ''; }), hoverinfo: 'text' }));
  const line = (from, name, value, tell, look) => ({ type: 'scatter', mode: 'lines+markers', x: names, y: names.map((n) => { const l = from.find((x) => x.name === n); return l ? value(l) : null; }),
    text: names.map((n) => { const l = from.find((x) => x.name === n); return l ? `<b>${plain(name)}</b><br>${plain(n)}: ${tell(l)}` : ''; }), hoverinfo: 'text', ...look });
  const bold = { line: { color: colour(own), width: 2.6 }, marker: { size: 7, color: colour(own) } };
  const mine = `this run (${focus.method})`;
  const sparsest = [...list].sort((a, b) => a.density - b.density)[0];
  drawChart('chart-density', { title: 'Density per layer', caption: `Sparsest: ${sparsest.name}, ${percent(sparsest.density)} kept`,
    summary: `${list.length} layers. The sparsest is ${sparsest.name} with ${percent(sparsest.density)} of its weights kept.`,
    traces: [...thin((l) => l.density || null), line(list, mine, (l) => l.density || null, (l) => `${percent(l.density)} (${count(l.kept)} weights)`, bold)],
    legend: [['●', own, mine], ...rest],
    layout: { xaxis: axis('', ticks), yaxis: logAxis('', [focus, ...others].flatMap((run) => run.layers.map((l) => l.density))) },
    head: ['layer', 'shape', 'kept', 'density'], rows: list.map((l) => [l.name, l.shape.join(' × '), count(l.kept), percent(l.density)]) });
  const share = (l) => l.delta_rank / l.full;
  const mean = list.reduce((sum, l) => sum + share(l), 0) / list.length;
  drawChart('chart-rank', { title: `δ-rank per layer, δ = ${focus.delta}`, caption: `Fraction of full rank; mean ${percent(mean, 1)}${dense ? `; ${dense.label}: ${percent(dense.layers.reduce((s, l) => s + share(l), 0) / dense.layers.length, 1)}` : ''}`,
    summary: `Ranks as a fraction of full rank. The mean δ-rank is ${percent(mean, 1)}.`,
    traces: [...thin(share),
      line(list, 'exact rank', (l) => l.exact / l.full, (l) => `exact ${l.exact} of ${l.full}`, { line: { color: colour('soft'), width: 1.4, dash: 'dot' }, marker: { size: 5, color: colour('soft'), symbol: 'diamond' } }),
      ...(dense ? [line(dense.layers, dense.label, share, (l) => `δ-rank ${l.delta_rank} of ${l.full}`, { mode: 'markers', marker: { size: 11, color: colour('ink'), symbol: 'circle-open' } })] : []),
      line(list, mine, share, (l) => `δ-rank ${l.delta_rank}, exact ${l.exact}, of ${l.full}`, bold)],
    legend: [['●', own, mine], ['◆', 'soft', 'exact rank of this run'], ...(dense ? [['○', 'ink', dense.label]] : []), ...rest],
    layout: { xaxis: axis('', ticks), yaxis: shareAxis('', [focus, ...others, ...(dense ? [dense] : [])].flatMap((run) => run.layers.flatMap((l) => [share(l), l.exact / l.full]))) },
    head: ['layer', 'full rank', `δ-rank (δ = ${focus.delta})`, 'exact rank', 'effective rank', ...(dense ? [`δ-rank, ${dense.label}`] : [])],
    rows: list.map((l) => [l.name, l.full, l.delta_rank, l.exact, l.effective, ...(dense ? [dense.layers.find((d) => d.name === l.name)?.delta_rank] : [])]) });
  const dead = list.reduce((sum, l) => sum + l.dead, 0), filters = list.reduce((sum, l) => sum + l.shape[0], 0);
  drawChart('chart-dead', { title: 'Dead filters', caption: `Filters without any weight: ${count(dead)} of ${count(filters)}`,
    empty: dead ? '' : `None: each of the ${count(filters)} filters keeps a weight.`, summary: `Bar chart. ${dead} of ${filters} filters are dead.`,
    traces: [{ type: 'bar', x: names, y: list.map((l) => l.dead), marker: { color: colour('soft'), cornerradius: 3 }, text: list.map((l) => `${plain(l.name)}: ${l.dead} of ${l.shape[0]}`), textposition: 'none', hoverinfo: 'text' }],
    layout: { xaxis: axis('', ticks), yaxis: axis('filters', { rangemode: 'tozero', nticks: 4 }), bargap: 0.4 },
    head: ['layer', 'dead', 'filters'], rows: list.map((l) => [l.name, l.dead, l.shape[0]]) });
  drawLayerTable(focus, dense);
}

let layerTable = null;
function drawLayerTable(focus, dense) {
  const other = new Map((dense?.layers || []).map((l) => [l.name, l]));
  const number = (key, label, value, cell, title) => ({ key, label, value, cell, title, number: true });
  const choose = (l) => make('button', { type: 'button', class: 'link', 'data-key': `layer ${l.name}`, on: { click: () => { state.layer = l.name; drawOneLayer(); drawLayerTable(focus, dense); byId('layer').scrollIntoView(); } } }, l.name);
  const columns = [
    { key: 'name', label: 'Layer', value: (l) => l.name, cell: choose },
    number('size', 'Shape', (l) => l.shape[0] * l.shape[1], (l) => l.shape.join(' × ')),
    number('kept', 'Kept', (l) => l.kept, (l) => count(l.kept)),
    number('density', 'Density', (l) => l.density, (l) => percent(l.density)),
    number('delta', `δ-rank (δ = ${focus.delta})`, (l) => l.delta_rank),
    number('exact', 'Exact rank', (l) => l.exact),
    ...(dense ? [number('dense', 'Dense δ-rank', (l) => other.get(l.name)?.delta_rank, undefined, dense.label)] : []),
    number('full', 'Full rank', (l) => l.full),
    number('dead', 'Dead filters', (l) => l.dead, (l) => `${l.dead} of ${l.shape[0]}`),
    number('macs', 'MACs', (l) => l.macs_sparse, (l) => (known(l.macs_sparse) ? `${short(l.macs_sparse)} of ${short(l.macs_dense)}` : NONE)),
  ];
  const sort = layerTable?.sort && columns.some((c) => c.key === layerTable.sort.key) ? layerTable.sort : null;
  layerTable = new SortedTable(byId('layers-table'), `Layers of ${focus.name}`, columns, { sort, current: (l) => l.name === state.layer });
  layerTable.show(focus.layers, 'No layers.');
}

function drawOneLayer() {
  const focus = focused(), list = focus.layers || [];
  if (!list.length) return;
  if (!layerOf(focus, state.layer)) state.layer = [...list].sort((a, b) => b.shape[0] * b.shape[1] - a.shape[0] * a.shape[1])[0].name;
  const pick = byId('pick-layer');
  pick.replaceChildren(...list.map((l) => make('option', { value: l.name, selected: l.name === state.layer }, l.name)));
  const layer = layerOf(focus, state.layer), dense = reference(focus)?.layers.find((l) => l.name === layer.name);
  const kind = layer.kernel > 1 ? `${layer.shape[0]} filters, ${layer.shape[1] / layer.kernel} input channels, ${layer.kernel} positions per kernel` : `${layer.shape[0]} outputs, ${layer.shape[1]} inputs`;
  byId('layer-note').textContent = `${focus.name}: ${kind}; ${count(layer.kept)} weights kept (${percent(layer.density)}).`;
  const others = peers().filter((run) => run !== focus && run.method !== 'dense' && layerOf(run, layer.name));
  const { own, of, rest } = layerColours(focus, others), mine = `this run (${focus.method})`;
  const curve = (l, name, look) => ({ type: 'scatter', mode: 'lines', x: l.spectrum.at, y: l.spectrum.value.map((v) => (v > 1e-7 ? v : null)), hoverinfo: 'text',
    text: l.spectrum.at.map((at, i) => `<b>${plain(name)}</b><br>σ ${at}: ${l.spectrum.value[i].toPrecision(3)}`), ...look });
  drawChart('chart-spectrum', { title: 'Spectrum', caption: `Singular values over the norm; δ-rank ${layer.delta_rank}, exact rank ${layer.exact}, of ${layer.full} (δ = ${focus.delta})`,
    summary: `Singular values of ${layer.name}, descending. δ-rank ${layer.delta_rank} and exact rank ${layer.exact} of ${layer.full}.`,
    empty: layer.spectrum.value.some((v) => v > 0) ? '' : 'Every weight of this layer is zero.',
    traces: [...others.map((run) => curve(layerOf(run, layer.name), labelOf(run), { line: { color: colour(of(run)), width: 1.2 }, opacity: 0.75 })),
      ...(dense ? [curve(dense, reference(focus).label, { line: { color: colour('ink'), width: 1.6, dash: 'dash' } })] : []),
      curve(layer, mine, { line: { color: colour(own), width: 2.8 } })],
    legend: [['━', own, mine], ...(dense ? [['┅', 'ink', reference(focus).label]] : []), ...rest],
    layout: { xaxis: axis('index', { rangemode: 'tozero' }), yaxis: axis('', { type: 'log', exponentformat: 'power', dtick: 1 }),
      shapes: [{ type: 'line', yref: 'paper', y0: 0, y1: 1, x0: layer.delta_rank, x1: layer.delta_rank, line: { color: colour('soft'), width: 1.2, dash: 'dot' } }],
      annotations: [{ yref: 'paper', y: 0.02, yanchor: 'bottom', x: layer.delta_rank, xanchor: layer.delta_rank > layer.full / 2 ? 'right' : 'left', xshift: layer.delta_rank > layer.full / 2 ? -5 : 5, text: `δ-rank ${layer.delta_rank}`, showarrow: false, font: { size: 11, color: colour('soft') } }] },
    head: ['index', mine, ...(dense ? [reference(focus).label] : [])],
    rows: layer.spectrum.at.map((at, i) => [at, layer.spectrum.value[i], ...(dense ? [dense.spectrum.value[i]] : [])]) });
  drawPicture(layer);
  drawChart('chart-filters', { title: 'Weights per filter', caption: `Filters by the number of weights they keep; ${layer.dead} of ${layer.shape[0]} keep none`,
    summary: `${layer.shape[0]} filters, largest first. The largest keeps ${layer.filters.kept[0]} weights, the smallest ${layer.filters.kept.at(-1)}.`,
    traces: [{ type: 'scatter', mode: 'lines', fill: 'tozeroy', line: { color: colour(own), width: 2, shape: 'hv' }, x: layer.filters.at, y: layer.filters.kept,
      text: layer.filters.at.map((at, i) => `filter ${at}: ${count(layer.filters.kept[i])} weights`), hoverinfo: 'text' }],
    layout: { xaxis: axis('filter, largest first', { rangemode: 'tozero' }), yaxis: axis('weights', { rangemode: 'tozero', nticks: 4 }) },
    head: ['filter, largest first', 'weights kept'], rows: layer.filters.at.map((at, i) => [at, layer.filters.kept[i]]) });
}

function drawPicture(layer) {
  const p = layer.picture, unit = layer.kernel > 1 ? 'kernel' : 'weight';
  const cell = p.cell[0] * p.cell[1] === 1 ? `one ${unit}` : `${p.cell[0]} × ${p.cell[1]} ${unit}s`;
  const image = make('img', { src: p.src, alt: `Mask of ${layer.name}: ${percent(layer.density)} of the weights kept, ${layer.dead} empty rows of ${layer.shape[0]}.` });
  const box = make('div', { class: 'mask' }, image);
  byId('picture').replaceChildren(make('h3', {}, 'Mask'),
    make('figcaption', {}, `A row is ${layer.kernel > 1 ? 'a filter' : 'an output'}, a column ${layer.kernel > 1 ? 'an input channel' : 'an input'}; a cell is ${cell}, the strongest keeps ${percent(p.strongest, 0)}`), box);
  // Scaled by a whole number, so that all rows and columns have the same size.
  const room = [box.clientWidth, box.clientHeight];
  const scale = Math.min(room[0] / p.columns, room[1] / p.rows);
  const size = scale >= 1 ? Math.floor(scale) : scale;
  image.style.width = `${Math.max(p.columns * size, Math.min(24, room[0]))}px`;
  image.style.height = `${Math.max(p.rows * size, Math.min(24, room[1]))}px`;
}
