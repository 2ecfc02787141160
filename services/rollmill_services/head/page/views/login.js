import { call } from "../api.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

export function Login({ ended, onDone }) {
  const [problem, setProblem] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const send = async (event) => {
    event.preventDefault();
    const token = field.current.value.trim();
    try {
      await call("/login", { method: "POST", body: { token } });
      onDone();
    } catch (error) {
      setProblem(error.status === 401 ? "This is not the token of this suite." : error.message);
      field.current.select();
    }
  };
  return html`
    <main class="login">
      <h1>Rollmill</h1>
      ${ended && html`<p role="status">Your session has ended. Log in again to go on where you were.</p>`}
      <form onSubmit=${send}>
        <label for="token">Token</label>
        <input id="token" ref=${field} type="password" autocomplete="current-password" required
          aria-describedby="token-help" aria-invalid=${problem ? "true" : "false"} />
        <p id="token-help" class="help">It is what <code>rollmill token</code> prints where the services were started.</p>
        ${problem && html`<p class="wrong" role="alert">${problem}</p>`}
        <button type="submit" class="primary">Log in</button>
      </form>
    </main>
  `;
}
