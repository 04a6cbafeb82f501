// Azure's client for Go.
//
// Requests as JSON lines on standard input, answers as JSON lines on standard output.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/coder/websocket"
)

type request map[string]any

func (r request) text(name string) string {
	text, _ := r[name].(string)
	return text
}

type operations map[string]func(context.Context, request) (any, error)

// Answer {"do": name, ...its arguments} with {"result": …} or {"error": …}, until standard input ends.
func serve(does operations) {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Second)
		answer := map[string]any{}
		if answer["result"], err = does[asked.text("do")](ctx, asked); err != nil {
			answer["error"] = err.Error()
		}
		cancel()
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
}

func trusting() *tls.Config {
	pem, err := os.ReadFile(os.Getenv("CA_FILE"))
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: roots, ServerName: os.Getenv("HOST")}
}

func webSocket(ctx context.Context, args azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting()}}
	options := &websocket.DialOptions{Subprotocols: []string{"amqp"}, HTTPClient: browser}
	socket, _, err := websocket.Dial(ctx, args.Host, options)
	if err != nil {
		return nil, err
	}
	return websocket.NetConn(context.Background(), socket, websocket.MessageBinary), nil
}

type Message = azservicebus.ReceivedMessage

// What Receiver and SessionReceiver have in common.
type receiver interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) ([]*Message, error)
	PeekMessages(context.Context, int, *azservicebus.PeekMessagesOptions) ([]*Message, error)
	CompleteMessage(context.Context, *Message, *azservicebus.CompleteMessageOptions) error
	AbandonMessage(context.Context, *Message, *azservicebus.AbandonMessageOptions) error
	DeferMessage(context.Context, *Message, *azservicebus.DeferMessageOptions) error
	DeadLetterMessage(context.Context, *Message, *azservicebus.DeadLetterOptions) error
}

type received struct {
	from    receiver
	message *Message
}

type messaging struct {
	client     *azservicebus.Client
	senders    map[string]*azservicebus.Sender
	receivers  map[string]receiver
	deliveries []received
}

func main() {
	// Without its last word, the string is that of a namespace with TLS.
	plain := os.Getenv("CONNECTION_STRING")
	secure := strings.TrimSuffix(plain, ";UseDevelopmentEmulator=true")
	options := &azservicebus.ClientOptions{TLSConfig: trusting()}
	words := secure
	switch os.Getenv("TRANSPORT") {
	case "tcp":
		words = plain
	case "websocket":
		options.NewWebSocketConn = webSocket
	}
	client, err := azservicebus.NewClientFromConnectionString(words, options)
	if err != nil {
		panic(err)
	}
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting()}}
	administration, err := admin.NewClientFromConnectionString(
		secure, &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: browser}},
	)
	if err != nil {
		panic(err)
	}
	bus := &messaging{client: client, senders: map[string]*azservicebus.Sender{}, receivers: map[string]receiver{}}
	serve(operations{
		"send": bus.send, "receive": bus.receive, "settle": bus.settle, "browse": bus.browse,
		"get-state": bus.getState, "set-state": bus.setState,
		"create-queue": func(ctx context.Context, r request) (any, error) {
			_, err := administration.CreateQueue(ctx, r.text("name"), nil)
			return nil, err
		},
		"delete-queue": func(ctx context.Context, r request) (any, error) {
			_, err := administration.DeleteQueue(ctx, r.text("name"), nil)
			return nil, err
		},
		"list-queues": func(ctx context.Context, _ request) (any, error) {
			names := []string{}
			for pages := administration.NewListQueuesPager(nil); pages.More(); {
				page, err := pages.NextPage(ctx)
				if err != nil {
					return nil, err
				}
				for _, queue := range page.Queues {
					names = append(names, queue.QueueName)
				}
			}
			return names, nil
		},
		// The client answers nothing and no error for a subscription that it does not find.
		"has-subscription": func(ctx context.Context, r request) (any, error) {
			found, err := administration.GetSubscription(ctx, r.text("topic"), r.text("name"), nil)
			return found != nil, err
		},
		"rule": func(ctx context.Context, r request) (any, error) {
			found, err := administration.GetRule(ctx, r.text("topic"), r.text("subscription"), r.text("name"), nil)
			if err != nil {
				return nil, err
			}
			names := map[string]string{"int64": "int", "float64": "double", "bool": "boolean", "string": "string"}
			kinds := map[string]string{}
			for name, value := range found.Filter.(*admin.CorrelationFilter).ApplicationProperties {
				kinds[name] = names[fmt.Sprintf("%T", value)]
			}
			return kinds, nil
		},
	})
}

func (m *messaging) send(ctx context.Context, r request) (any, error) {
	to := r.text("to")
	if m.senders[to] == nil {
		made, err := m.client.NewSender(to, nil)
		if err != nil {
			return nil, err
		}
		m.senders[to] = made
	}
	message := &azservicebus.Message{Body: []byte(r.text("body"))}
	if session, given := r["session"].(string); given {
		message.SessionID = &session
	}
	if at, given := r["at"].(float64); given {
		due := time.UnixMilli(int64(at))
		message.ScheduledEnqueueTime = &due
	}
	return nil, m.senders[to].SendMessage(ctx, message, nil)
}

func (m *messaging) receiver(ctx context.Context, r request) (receiver, error) {
	session, inSession := r["session"]
	key := fmt.Sprint(r.text("path"), session, inSession)
	if m.receivers[key] == nil {
		made, err := m.opened(ctx, r.text("path"), session, inSession)
		if err != nil {
			return nil, err
		}
		m.receivers[key] = made
	}
	return m.receivers[key], nil
}

func (m *messaging) opened(ctx context.Context, path string, session any, inSession bool) (receiver, error) {
	id, named := session.(string)
	queue, isDead := strings.CutSuffix(path, "/$DeadLetterQueue")
	switch {
	case named:
		return m.client.AcceptSessionForQueue(ctx, path, id, nil)
	case inSession:
		return m.client.AcceptNextSessionForQueue(ctx, path, nil)
	case isDead:
		return m.client.NewReceiverForQueue(queue, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
	default:
		return m.client.NewReceiverForQueue(path, nil)
	}
}

func (m *messaging) receive(ctx context.Context, r request) (any, error) {
	from, err := m.receiver(ctx, r)
	if err != nil {
		return nil, err
	}
	messages, err := from.ReceiveMessages(ctx, 1, nil)
	if err != nil {
		return nil, err
	}
	message := messages[0]
	m.deliveries = append(m.deliveries, received{from, message})
	answer := map[string]any{
		"delivery": len(m.deliveries) - 1,
		"body":     string(message.Body),
		// The client counts this delivery, too.
		"count":      message.DeliveryCount - 1,
		"session":    message.SessionID,
		"properties": len(message.ApplicationProperties),
		"partition":  message.RawAMQPMessage.MessageAnnotations["x-opt-partition-id"],
	}
	if message.TimeToLive != nil {
		answer["ttl"] = message.TimeToLive.Milliseconds()
	}
	return answer, nil
}

func (m *messaging) settle(ctx context.Context, r request) (any, error) {
	got := m.deliveries[int(r["delivery"].(float64))]
	reason := "told"
	switch r.text("how") {
	case "accept":
		return nil, got.from.CompleteMessage(ctx, got.message, nil)
	case "modify":
		return nil, got.from.AbandonMessage(ctx, got.message, nil)
	case "defer":
		return nil, got.from.DeferMessage(ctx, got.message, nil)
	case "reject":
		return nil, got.from.DeadLetterMessage(ctx, got.message, &azservicebus.DeadLetterOptions{Reason: &reason})
	}
	return nil, errors.New("the client does not settle so")
}

func (m *messaging) browse(ctx context.Context, r request) (any, error) {
	from, err := m.receiver(ctx, r)
	if err != nil {
		return nil, err
	}
	messages, err := from.PeekMessages(ctx, int(r["count"].(float64)), nil)
	bodies := []string{}
	for _, message := range messages {
		bodies = append(bodies, string(message.Body))
	}
	return bodies, err
}

func (m *messaging) getState(ctx context.Context, r request) (any, error) {
	got := m.deliveries[int(r["delivery"].(float64))]
	state, err := got.from.(*azservicebus.SessionReceiver).GetSessionState(ctx, nil)
	if state == nil {
		return nil, err
	}
	return string(state), err
}

func (m *messaging) setState(ctx context.Context, r request) (any, error) {
	var state []byte
	if text, given := r["state"].(string); given {
		state = []byte(text)
	}
	got := m.deliveries[int(r["delivery"].(float64))]
	return nil, got.from.(*azservicebus.SessionReceiver).SetSessionState(ctx, state, nil)
}
