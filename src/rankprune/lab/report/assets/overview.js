// The run in focus, the table of runs, latency on the engine, recipe and environment.
const denseOf = (run) => state.data.points.find((p) => p.task === run.task && p.method === 'dense');

function tile(label, value, unit, more, share) {
  return make('div', { class: 'tile' }, make('dt', {}, label), make('dd', {}, value, unit ? make('small', {}, ` ${unit}`) : null),
    ...more.filter(Boolean).map((text) => make('dd', { class: 'more' }, text)), known(share) ? meter(share) : null);
}

const figure = (x, digits = 2) => (known(x) ? (100 * x).toFixed(digits) : NONE);

function finishedTiles(run) {
  const r = run.result, dense = denseOf(run);
  const gap = dense && run.method !== 'dense' ? `${(100 * Math.abs(r.accuracy_last - dense.accuracy)).toFixed(2)} points ${r.accuracy_last < dense.accuracy ? 'below' : 'above'} dense` : '';
  return [
    tile(run.measure, figure(r.accuracy_last), '%', [gap || `best ${percent(r.accuracy_best)} in epoch ${r.best_epoch ?? NONE}`]),
    tile('Sparsity', sparsityText(r.sparsity).replace(' %', ''), '%', [`${count(r.kept)} of ${count(r.prunable)} weights kept`]),
    tile('Model file', short(r.bytes_sparse, 'B'), '', [r.bytes_sparse < r.bytes_dense ? `${times(r.bytes_dense, r.bytes_sparse)} smaller than dense` : `dense: ${short(r.bytes_dense, 'B')}`]),
    tile('MACs per image', short(r.macs_sparse), '', [r.macs_sparse < r.macs_dense ? `${times(r.macs_dense, r.macs_sparse)} fewer than dense` : `dense: ${short(r.macs_dense)}`]),
    ...latencyTile(run),
    tile(`δ-rank, δ = ${run.delta}`, figure(r.delta_rank_ratio, 1), '% of full', [`exact rank ${percent(r.exact_rank_ratio, 1)}`]),
    tile('Dead filters', count(r.dead_filters), `of ${count(r.filters)}`, [known(r.filters) ? percent(r.dead_filters / r.filters, 1) : '']),
    tile('Training', duration(r.seconds), '', [known(r.training_share) ? `${percent(r.training_share, 0)} of dense training FLOPs` : `${count(r.steps)} steps`]),
  ];
}

// Median latency of one image, with the 10th and 90th percentile of the rounds.
const timeOf = (run, engine) => run.latency?.times[engine];
const rangeOf = (time) => `${Number((1e3 * time.low).toPrecision(3))}–${Number((1e3 * time.high).toPrecision(3))}`;
const spreadOf = (time) => (time ? `${milliseconds(time.median)} (${rangeOf(time)})` : NONE);

// A cell of the table: a value, and in a second line what belongs to it.
const twoLines = (value, more) => make('span', {}, value, make('small', { class: 'second' }, more));

function latencyTile(run) {
  const ours = timeOf(run, 'rankprune');
  if (!ours) return [];
  const others = [['torch', 'torch'], ['onnxruntime', 'ONNX Runtime']].filter(([key]) => timeOf(run, key));
  return [tile('Latency, one image', milliseconds(ours.median).replace(' ms', ''), 'ms',
    [`on the engine (${rangeOf(ours)})`, ...others.map(([key, name]) => `${name} ${spreadOf(timeOf(run, key))}`)])];
}

function runningTiles(run) {
  const last = run.metrics.at(-1);
  return [
    tile('Epoch', last ? count(last.epoch) : '0', `of ${count(run.epochs)}`, ['not finished'], (last?.epoch || 0) / (run.epochs || 1)),
    tile(run.measure, last ? figure(last.accuracy) : NONE, last ? '%' : '', [last && !last.at_target ? `at ${sparsityText(last.sparsity)}: not at its target yet, does not count` : '']),
    tile('Sparsity now', last ? sparsityText(last.sparsity).replace(' %', '') : NONE, last ? '%' : '', [`target ${sparsityText(run.target)}`], last ? last.sparsity / (run.target || 1) : 0),
    tile('Training loss', last ? fixed(last.train_loss, 3) : NONE, '', [last ? `test loss ${fixed(last.test_loss, 3)}` : '']),
    tile('Learning rate', last && known(last.lr) ? String(Number(last.lr.toPrecision(3))) : NONE, '', []),
    tile('Time', last ? duration(last.seconds) : NONE, '', [last && run.epochs > last.epoch ? `about ${duration((last.seconds / last.epoch) * (run.epochs - last.epoch))} to go` : '']),
  ];
}

function drawOverview() {
  const run = focused(), many = runs().length > 1;
  byId('title').textContent = run.name;
  document.title = `${run.name} · rankprune report`;
  byId('subject').textContent = many ? `Report on ${runs().length} runs; in focus:` : 'Report on one run';
  byId('subtitle').textContent = `${run.task} · ${run.method === 'dense' ? 'dense' : `${run.method}, target ${sparsityText(run.target)}`} · seed ${run.seed ?? NONE} · ${count(run.epochs)} ${run.epochs === 1 ? 'epoch' : 'epochs'}`;
  byId('pick-field').hidden = !many;
  byId('runs').hidden = !many;
  byId('pick').replaceChildren(...runs().map((r) => make('option', { value: r.id, selected: r === run }, labelOf(r))));
  byId('tiles').replaceChildren(...(run.result ? finishedTiles(run) : runningTiles(run)));
  byId('problem').textContent = run.problem ? `Shown without its layers: ${run.problem}` : '';
  byId('foot').textContent = `Made ${new Date(state.data.made).toLocaleString()} by rankprune ${state.data.version}.`;
}

let runTable = null;
function drawRuns() {
  const result = (key, label, cell, title) => ({ key, label, title, number: true, value: (r) => r.result?.[key], cell: (r) => (r.result ? cell(r.result, r) : NONE) });
  const choose = (r) => make('input', { type: 'checkbox', 'data-key': `choose ${r.id}`, 'aria-label': `Compare ${labelOf(r)}`,
    title: `Compare side by side (up to ${MOST})`, checked: state.chosen.has(r.id), disabled: !state.chosen.has(r.id) && state.chosen.size >= MOST,
    on: { change: (event) => { if (event.target.checked) state.chosen.add(r.id); else state.chosen.delete(r.id); draw(); } } });
  const name = (r) => make('span', { class: 'choose' }, make('label', {}, choose(r)), make('button', { type: 'button', class: 'link', title: labelOf(r), 'data-key': `run ${r.id}`, 'aria-pressed': String(r === focused()), on: { click: () => setFocus(r.id) } }, labelOf(r, false)));
  const differ = (value) => new Set(runs().map(value)).size > 1;
  const columns = [
    { key: 'name', label: 'Run', value: (r) => r.name, cell: name },
    result('accuracy_last', 'Accuracy', (x) => twoLines(percent(x.accuracy_last), `best ${percent(x.accuracy_best)}`), 'test top-1 (detection: AP of boxes) of the last epoch, at exactly the sparsity shown; below: of the best epoch at that sparsity'),
    result('sparsity', 'Sparsity', (x) => sparsityText(x.sparsity)),
    { key: 'method', label: 'Method', value: (r) => r.method },
    result('macs_sparse', 'MACs', (x) => short(x.macs_sparse), 'per image, over the kept weights'),
    result('bytes_sparse', 'File', (x) => short(x.bytes_sparse, 'B')),
    ...[['rankprune', 'Engine'], ['torch', 'torch'], ['onnxruntime', 'ONNX Runtime']].filter(([key]) => runs().some((r) => timeOf(r, key)))
      .map(([key, label]) => ({ key, label, number: true, title: 'median latency of one image (10th to 90th percentile of the rounds)', value: (r) => timeOf(r, key)?.median, cell: (r) => (timeOf(r, key) ? twoLines(milliseconds(timeOf(r, key).median), rangeOf(timeOf(r, key))) : NONE) })),
    result('delta_rank_ratio', 'δ-rank', (x) => twoLines(percent(x.delta_rank_ratio, 1), `exact ${percent(x.exact_rank_ratio, 1)}`), `mean over the layers of δ-rank / full rank, δ = ${[...new Set(runs().map((r) => r.delta))].join(', ')}; below: of exact rank / full rank`),
    result('dead_filters', 'Dead filters', (x) => twoLines(count(x.dead_filters), `of ${count(x.filters)}`), 'filters without a weight'),
    result('training_share', 'Training FLOPs', (x) => percent(x.training_share, 0), 'as a fraction of dense training'),
    result('seconds', 'Training time', (x) => duration(x.seconds)),
    ...(differ((r) => r.task) ? [{ key: 'task', label: 'Task', value: (r) => r.task }] : []),
    ...(differ((r) => r.seed) ? [{ key: 'seed', label: 'Seed', number: true, value: (r) => r.seed }] : []),
    ...(runs().some((r) => !r.result) ? [{ key: 'state', label: 'State', value: (r) => (r.result ? 'finished' : `epoch ${r.metrics.at(-1)?.epoch ?? 0} of ${r.epochs ?? NONE}`) }] : []),
  ];
  runTable ??= new SortedTable(byId('runs-table'), 'Runs', columns, { sort: { key: 'accuracy_last', way: 'descending' }, current: (r) => r === focused() });
  runTable.columns = columns;
  runTable.show(shownRuns(), 'No run matches the filter.');
  const text = `${shownRuns().length} of ${runs().length} runs shown.`;
  if (byId('shown').textContent !== text) byId('shown').textContent = text;
  byId('runs-note').textContent = `δ-rank: mean fraction of full rank at δ = ${[...new Set(runs().map((r) => r.delta))].join(', ')}. MACs: per image, over the kept weights. Training FLOPs: as a fraction of dense training.`;
}

// The chosen runs, one column each, with the settings in which they differ below the measures.
function drawSide() {
  const list = chosenRuns();
  byId('side').hidden = list.length < 2;
  if (list.length < 2) return;
  const of = (f) => list.map((r) => (r.result ? f(r.result, r) : NONE));
  const rows = [
    ['Accuracy, last epoch', ...of((x) => percent(x.accuracy_last))], ['Accuracy, best epoch', ...of((x) => percent(x.accuracy_best))],
    ['Sparsity', ...of((x) => sparsityText(x.sparsity))], ['Weights kept', ...of((x) => count(x.kept))],
    ['Model file', ...of((x) => short(x.bytes_sparse, 'B'))], ['MACs per image', ...of((x) => short(x.macs_sparse))],
    ...[['rankprune', 'Latency, engine'], ['torch', 'Latency, torch'], ['onnxruntime', 'Latency, ONNX Runtime']].filter(([key]) => list.some((r) => timeOf(r, key)))
      .map(([key, label]) => [label, ...list.map((r) => spreadOf(timeOf(r, key)))]),
    ['δ-rank / full rank', ...of((x) => percent(x.delta_rank_ratio, 1))], ['Dead filters', ...of((x) => count(x.dead_filters))],
    ['Training FLOPs of dense', ...of((x) => percent(x.training_share, 0))], ['Training time', ...of((x) => duration(x.seconds))],
  ];
  const keys = [...new Set(list.flatMap((r) => Object.keys(r.recipe)))].filter((key) => key !== 'name' && new Set(list.map((r) => r.recipe[key])).size > 1);
  rows.push(...keys.map((key) => [key, ...list.map((r) => r.recipe[key])]));
  byId('side-table').replaceChildren(plainTable(`${list.length} runs side by side`, ['', ...list.map((r) => labelOf(r))], rows));
}

function drawEngine() {
  const run = focused(), engine = run.engine;
  byId('engine').hidden = !engine;
  if (!engine) return;
  const list = engine.layers.filter((l) => known(l.ms)), total = list.reduce((sum, l) => sum + l.ms, 0);
  const ours = timeOf(run, 'rankprune'), whole = ours ? 1e3 * ours.minimum : engine.engine_ms, rest = whole - total;
  const compared = ['torch', 'onnxruntime'].filter((key) => timeOf(run, key)).map((key) => `${spreadOf(timeOf(run, key))} in ${key === 'torch' ? 'torch' : 'ONNX Runtime'}`);
  const sums = rest > 0
    ? `The layers' shortest times add up to ${total.toFixed(3)} ms; the other ${rest.toFixed(3)} ms of the shortest run are spent on input, output and waking the threads.`
    : `The layers' times add up to ${total.toFixed(3)} ms, more than the ${whole.toFixed(3)} ms of the shortest run, because timing each layer adds overhead.`;
  byId('engine-note').textContent = `${run.name}, one image, ${engine.threads} thread${engine.threads === 1 ? '' : 's'}, measured where this page was made: ${ours ? spreadOf(ours) : `${whole.toFixed(2)} ms`}${compared.length ? `, against ${compared.join(' and ')}` : ''}; medians (10th to 90th percentile). ${sums}`;
  if (rest > 0) list.push({ name: 'outside the layers', kernel: 'input, output, threads', ms: rest });
  const shown = [...list].reverse();
  const slowest = [...list].sort((a, b) => b.ms - a.ms)[0];
  drawChart('chart-engine', { title: 'Time per layer', caption: `Slowest: ${slowest.name}, ${percent(slowest.ms / Math.max(whole, total), 0)} of the time`,
    summary: `Bar chart of ${list.length} operators. The slowest is ${slowest.name} with ${slowest.ms.toFixed(3)} milliseconds.`,
    traces: [{ type: 'bar', orientation: 'h', x: shown.map((l) => l.ms), y: shown.map((l, i) => `${shown.length - i} ${plain(l.name)}`), marker: { color: colour('soft'), cornerradius: 3 },
      text: shown.map((l) => `${plain(l.name)}: ${l.ms.toFixed(3)} ms<br>${plain(l.kernel)}`), textposition: 'none', hoverinfo: 'text' }],
    height: Math.max(320, 60 + 20 * list.length), layout: { bargap: 0.35, xaxis: axis('milliseconds', { rangemode: 'tozero' }), yaxis: axis('', { type: 'category', tickmode: 'linear' }) },
    head: ['operator', 'kernel', 'milliseconds', 'weights kept'], rows: [...engine.layers, ...list.slice(engine.layers.filter((l) => known(l.ms)).length)].map((l) => [l.name, l.kernel, fixed(l.ms, 4), count(l.kept)]) });
}

function drawRecipe() {
  const run = focused(), others = runs().filter((r) => r !== run);
  const facts = (place, key) => place.replaceChildren(...Object.entries(run[key]).map(([name, value]) =>
    make('div', { class: others.some((r) => r[key][name] !== value) ? 'differs' : null }, make('dt', {}, name), make('dd', {}, value))));
  const stated = Object.entries(run.recipe).filter(([name, value]) => run.defaults[name] !== value);
  byId('recipe-stated').replaceChildren(...stated.map(([name, value]) =>
    make('div', { class: others.some((r) => r.recipe[name] !== value) ? 'differs' : null }, make('dt', {}, name),
      make('dd', {}, value, name in run.defaults ? make('small', { class: 'default' }, ` default ${run.defaults[name]}`) : null))));
  facts(byId('recipe-facts'), 'recipe');
  facts(byId('environment-facts'), 'environment');
  byId('recipe-note').textContent = `${run.name}: settings that differ from the defaults.${others.length ? ' Marked: settings that differ between runs.' : ''}`;
}
