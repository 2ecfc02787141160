import htm from "htm";
import { h } from "preact";

export { Fragment, h, render } from "preact";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export const html = htm.bind(h);
